"""ONNX files: the place that knows the library. Reading gives plain facts for gates; writing is whole or not at all.

A file is written into a fresh directory beside its target, read back, and renamed into place. So the same model saved twice has
the same bytes, external data never keeps what an older version left, and a full disk leaves the target as it was.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tauten.spec.errors import BadModel, MissingExtra
from tauten.spec.graph import Graph

if TYPE_CHECKING:
    import onnx

EXTRA = "onnx"
EXTERNAL_ABOVE = 1 << 30  # bytes of weights; a protobuf message ends at 2 GiB
INLINE_BELOW = 1024  # bytes: smaller weights stay in the model file, where tools want to read them
ALIGNMENT = 4096  # of a weight in external data: the format asks for whole pages, so that engines can map them


def load(path: Path) -> onnx.ModelProto:
    """The model with its external data. Raises BadModel for a file that is missing, damaged or of another kind."""
    model = read_skeleton(path)
    try:
        library().external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, library().checker.ValidationError) as error:
        raise BadModel(f"the external data of {path.name!r} cannot be read: {one_line(error)}",
                       fix="keep the data file beside the model file, under its name") from error  # fmt: skip
    return model


def read_skeleton(path: Path) -> onnx.ModelProto:
    """The model without its external data. Raises BadModel."""
    if not path.is_file():
        raise BadModel(f"there is no file {path.name!r}", fix="check the path")
    read = library().load_model
    try:
        model: onnx.ModelProto = read(str(path), load_external_data=False)
    except Exception as error:
        # The decoder's exceptions have no base but Exception, and differ between the versions of protobuf.
        raise BadModel(f"{path.name!r} is not a readable ONNX model: {one_line(error)}",
                       fix="export it again, or fetch it again whole") from error  # fmt: skip
    if not model.ir_version or not model.opset_import or not model.graph.output:
        raise BadModel(f"{path.name!r} is not an ONNX model: it has no graph with an output",
                       fix="give the file that an exporter wrote, whole")  # fmt: skip
    return model


def save(model: onnx.ModelProto, path: Path, *, external_above: int = EXTERNAL_ABOVE) -> None:
    """Writes the model; with more than `external_above` bytes of weights these go to `<name>.data` beside it.

    The target appears whole, after everything was flushed to disk and read back, or is left as it was. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        text = library().TensorProto.STRING  # has no bytes of a fixed size, so it cannot lie outside
        large = [t for t in model.graph.initializer if t.ByteSize() > INLINE_BELOW and t.data_type != text]
        if sum(t.ByteSize() for t in large) > external_above:
            _write_external(model, large, fresh)
        else:
            _write(fresh, [model.SerializeToString(deterministic=True)])
        read_skeleton(fresh)
        publish(fresh, path)


def publish(fresh: Path, path: Path) -> None:
    """Renames a model file and its data from a directory on the same file system into place, and what was there away.

    At no moment does a model stand beside the data of another one. Raises OSError, also where a device would be replaced.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is there and no regular file", str(path))
    data, fresh_data = data_of(path), data_of(fresh)
    if fresh_data.exists():
        path.unlink(missing_ok=True)
        os.replace(fresh_data, data)
        os.replace(fresh, path)
    else:
        os.replace(fresh, path)
        data.unlink(missing_ok=True)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def data_of(path: Path) -> Path:
    """Where the external data of a model that we write is."""
    return path.with_name(path.name + ".data")


def copy(source: Path, target: Path) -> None:
    """Copies a model file to `target`, whole, external data under the name that `save` gives it. Raises BadModel, OSError."""
    if any(w.location for w in read_graph(source).initializers):
        save(load(source), target, external_above=0)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        shutil.copyfile(source, fresh)
        publish(fresh, target)


def with_outputs(source: Path, target: Path, names: Sequence[str]) -> None:
    """Writes an instrumented copy that also returns the named inner values; the source is untouched. Raises BadModel."""
    model = load(source)
    graph = model.graph
    there = {o.name for o in graph.output}
    inner = {name for node in graph.node for name in node.output} | {i.name for i in graph.input}
    for name in names:
        if name not in inner:
            raise BadModel(f"{source.name!r} has no inner value {name!r}", fix="name an output of a node of the main graph")
        if name not in there:
            graph.output.add().name = name  # no type and no shape: what is declared may be wrong, and the engine infers them
    save(model, target)


def invalid(model: onnx.ModelProto) -> str:
    """Why the library's own checker refuses the model; empty when it does not. Larger than 2 GiB it is not asked."""
    if sum(t.ByteSize() for t in model.graph.initializer) > EXTERNAL_ABOVE:
        return ""
    try:
        library().checker.check_model(model)
    except (library().checker.ValidationError, ValueError) as error:
        return one_line(error)
    return ""


def read_graph(path: Path) -> Graph:
    """Facts read back from a file, its weights not loaded. Raises BadModel."""
    model = read_skeleton(path)  # before the import, so that a missing library is told as such
    from tauten.formats import onnx_facts  # noqa: PLC0415  it imports the library

    weights = tuple(onnx_facts.initializer(t) for t in model.graph.initializer)
    files = {path.name: path.stat().st_size}
    for location in dict.fromkeys(w.location for w in weights if w.location):
        data = (path.parent / location).resolve()
        if data.is_relative_to(path.parent.resolve()) and data.is_file():
            files[location] = data.stat().st_size
    return Graph(
        ir_version=model.ir_version,
        opsets={o.domain: o.version for o in model.opset_import},
        inputs=tuple(onnx_facts.value(v) for v in model.graph.input),
        outputs=tuple(onnx_facts.value(v) for v in model.graph.output),
        nodes=tuple(onnx_facts.nodes(model)),
        initializers=weights,
        metadata={p.key: p.value for p in model.metadata_props},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        files=files,
    )


def library() -> Any:
    """The onnx package. Raises MissingExtra."""
    try:
        import onnx  # noqa: PLC0415  an extra; whoever only lists or serves models does without
        import onnx.external_data_helper  # noqa: PLC0415  as above
    except ModuleNotFoundError as error:
        raise MissingExtra("onnx", EXTRA, needed_for="an ONNX file") from error
    return onnx


def one_line(error: Exception) -> str:
    """What an exception says, without line breaks and not longer than a paragraph."""
    return " ".join(str(error).split())[:300]


def _write_external(model: onnx.ModelProto, weights: Sequence[onnx.TensorProto], fresh: Path) -> None:
    """Weights to the data file one after the other, then the model file with references to them."""
    helper, data = library().external_data_helper, data_of(fresh)
    places = _write_weights(weights, data)
    try:
        for tensor, (offset, length) in zip(weights, places, strict=True):
            helper.set_external_data(tensor, data.name, offset, length)
            tensor.ClearField("raw_data")
        _write(fresh, [model.SerializeToString(deterministic=True)])
    finally:  # the caller's model is as it was
        helper.load_external_data_for_model(model, str(fresh.parent))


def _write_weights(weights: Sequence[onnx.TensorProto], data: Path) -> list[tuple[int, int]]:
    """Offset and length of every weight in the file, in the order they are given."""
    places: list[tuple[int, int]] = []
    parts: list[bytes] = []
    end = 0
    with data.open("wb") as file:
        for tensor in weights:
            if not tensor.HasField("raw_data"):
                array = library().numpy_helper.to_array(tensor)
                tensor.CopyFrom(library().numpy_helper.from_array(array, tensor.name))
            offset = math.ceil(end / ALIGNMENT) * ALIGNMENT
            parts = [b"\0" * (offset - end), tensor.raw_data]
            file.writelines(parts)
            places.append((offset, len(parts[1])))
            end = offset + len(parts[1])
        file.flush()
        os.fsync(file.fileno())
    return places


def _write(path: Path, parts: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
