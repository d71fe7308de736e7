"""Ways to run a model file for the gates: in this process, in a fresh one, and instrumented.

Run as a program, this module is the fresh process: it opens one model, answers frames on stdin with frames on stdout, and
ends when stdin does. A frame is its length in eight bytes and then an .npz archive; an answer has a byte for success before.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tauten.spec import plugins
from tauten.spec.engine import Engine, EngineSettings, Runner, Session, Tensors
from tauten.spec.errors import EngineFailed, TautenError
from tauten.spec.tensors import Array

Close = Callable[[], None]
PATIENCE_S = 300.0  # for one answer of a fresh process
LIMIT = 1 << 33  # bytes in one frame
_LENGTH = struct.Struct("<Q")
_OK, _FAILED = b"\x01", b"\x00"


def open_session(engine: str, model: Path, settings: EngineSettings) -> Session:
    """Opens a model file with an engine by name. Raises BadModel, BadUsage or MissingExtra."""
    module: Engine = plugins.load("engines", engine)
    return module.open(model, settings)


def engine_runner(engine: str, model: Path, settings: EngineSettings) -> tuple[Runner, Close]:
    """A runner in this process, and what closes it."""
    session = open_session(engine, model, settings)
    return session.run, session.close


@contextmanager
def tapped(engine: str, model: Path, names: tuple[str, ...]) -> Iterator[Runner]:
    """A runner of an instrumented copy that also returns the named inner values.

    The engine's own optimiser is off, so that every value is really computed. The model file itself is untouched.
    """
    from tauten.formats.onnx_file import with_outputs  # noqa: PLC0415  extra `onnx`

    with tempfile.TemporaryDirectory(prefix="tauten-taps-") as folder:
        copy = Path(folder) / "model.onnx"
        with_outputs(model, target=copy, names=names)
        run, close = engine_runner(engine, copy, EngineSettings(graph_level="disabled"))
        try:
            yield run
        finally:
            close()


def fresh_process_runner(
    engine: str, model: Path, settings: EngineSettings, *, patience_s: float = PATIENCE_S
) -> tuple[Runner, Close]:
    """A runner in a process of its own, which serves all calls until closed. It raises EngineFailed when it fails or dies."""
    child = _Child([engine, str(model), msgspec.json.encode(settings).decode()], patience_s)
    return child.run, child.close


class _Child:
    """The near end of a fresh process."""

    def __init__(self, arguments: list[str], patience_s: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and our own module
            [sys.executable, "-P", "-m", "tauten.delivery.runners", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=dict(os.environ),
        )  # fmt: skip
        self._patience_s = patience_s
        self._one_at_a_time = threading.Lock()

    def run(self, inputs: Tensors) -> dict[str, Array]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        impatience = threading.Timer(self._patience_s, process.kill)
        with self._one_at_a_time:
            impatience.start()
            try:
                _write(process.stdin, pack(inputs))
                ok, payload = process.stdout.read(1), _read(process.stdout)
            except (OSError, EOFError, ValueError) as error:
                raise EngineFailed(f"the fresh process ended: {self._last_words() or error}") from error
            finally:
                impatience.cancel()
        if ok != _OK:
            raise EngineFailed(payload.decode("utf-8", "replace"))
        return unpack(payload)

    def close(self) -> None:
        process = self._process
        if process.stdin is None or process.stdin.closed:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it died with a frame unread
                    pipe.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it lives but speaks nonsense
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def pack(tensors: Tensors) -> bytes:
    """Tensors as an .npz archive without pickles; strings as fixed-width text."""
    arrays = [np.asarray(v, dtype=np.str_) if v.dtype == object else v for v in tensors.values()]
    buffer = io.BytesIO()
    names = np.array(list(tensors), dtype=np.str_)
    np.savez(buffer, names=names, **{f"a{i}": a for i, a in enumerate(arrays)})  # type: ignore[arg-type]  # no array is allow_pickle
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Array]:
    """What `pack` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = [archive[f"a{i}"] for i in range(len(archive["names"]))]
        return {
            str(name): a.astype(object) if a.dtype.kind == "U" else a for name, a in zip(archive["names"], arrays, strict=True)
        }


def _write(pipe: Any, data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: Any) -> bytes:
    """One frame. Raises EOFError when the pipe ends, ValueError when the length cannot be right."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("no more frames")
    (length,) = _LENGTH.unpack(head)
    if length > LIMIT:
        raise ValueError(f"a frame of {length} bytes")
    data: bytes = pipe.read(length)
    if len(data) < length:
        raise EOFError("a frame was cut")
    return data


def _serve(engine: str, model: str, settings: str) -> None:
    """The far end: answers frames until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints to stdout must not get between the frames
    session = open_session(engine, Path(model), msgspec.json.decode(settings, type=EngineSettings))
    while True:
        try:
            frame = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            status, data = _OK, pack(session.run(unpack(frame)))
        except TautenError as error:
            status, data = _FAILED, error.message.encode()
        answers.write(status)
        _write(answers, data)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
