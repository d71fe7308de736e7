"""Public fakes for tests: a clock that jumps, an engine that echoes, tiny bundles, a service in one line.

    async with testing.service(testing.tiny_bundle(tmp_path)) as service:
        reply = await service.infer(InferRequest("tiny", testing.tiny_inputs([3, 1, 2])))

Tiny bundles need the extra `onnx`.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tauten.serving.service import Service
from tauten.spec import plugins
from tauten.spec.bundle import SCHEMA, Bundle, Manifest, Variant, seal
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, Port, ServingSettings, Tensors
from tauten.spec.errors import EngineFailed
from tauten.spec.golden import write_probes
from tauten.spec.tensors import Array

WORDS, WIDTH, VECTOR = 32, 8, 4  # the tiny encoder's vocabulary, inner width, and size of its embedding
LONGEST = 16


class Clock:
    """Time that passes only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def jump(self, seconds: float) -> None:
        self.now += seconds


class Echo:
    """An engine whose model returns its inputs under its outputs' names, in the order they were declared.

    Use it with `service(bundle, engine=Echo(…))`. `batches` are the inputs of every run, in order; `hold()` makes runs wait
    at a gate until `release()`; `fail` is asked before every run and may raise.
    """

    def __init__(
        self, inputs: Sequence[Port], outputs: Sequence[Port], fail: Callable[[Tensors], None] = lambda _: None
    ) -> None:
        self.inputs, self.outputs, self.fail = tuple(inputs), tuple(outputs), fail
        self.batches: list[dict[str, Array]] = []
        self.opened = self.closed = 0
        self._gate, self._entered = threading.Event(), threading.Semaphore(0)
        self._gate.set()

    EXTRA = ""

    def version(self) -> str:
        return "0"

    def open(self, _model: Path, settings: EngineSettings) -> EchoSession:
        self.opened += 1
        return EchoSession(self, settings)

    def hold(self) -> None:
        """From now on runs stop at the gate."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def wait_for_run(self, timeout: float = 30.0) -> None:
        """Blocks until one more run stands at the gate or has passed it."""
        assert self._entered.acquire(timeout=timeout), "no run came"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        self.batches.append(dict(inputs))
        self._entered.release()
        self._gate.wait()
        self.fail(inputs)
        return {out.name: inputs[given.name] for given, out in zip(self.inputs, self.outputs, strict=True)}


class EchoSession:
    def __init__(self, engine: Echo, settings: EngineSettings) -> None:
        self._engine, self._settings, self._closed = engine, settings, False
        self.inputs, self.outputs = engine.inputs, engine.outputs

    def run(self, inputs: Tensors) -> dict[str, Array]:
        if self._closed:
            raise EngineFailed("the session is closed")
        return self._engine.run(inputs)

    def facts(self) -> dict[str, Any]:
        return {"engine": "echo", "version": "0", "threads": self._settings.threads}

    def close(self) -> None:
        self._engine.closed += not self._closed
        self._closed = True


def seal_bundle(  # noqa: PLR0913  keyword-only, each with a default: a test names what it is about
    target: Path,
    contract: Contract,
    model: Callable[[Path], None],
    settings: ServingSettings,
    *,
    golden: dict[str, tuple[Tensors, Tensors]] | None = None,
    processor: dict[str, bytes] | None = None,
    version: str = "1",
    variant: dict[str, Any] | None = None,
) -> Bundle:
    """Seals a bundle without any gate. `model` writes the model file, `golden` are probes with their answers."""

    def fill(root: Path) -> Manifest:
        folder = root / "variants" / "fp32"
        folder.mkdir(parents=True)
        model(folder / "model.onnx")
        (folder / "settings.json").write_bytes(msgspec.json.encode(settings))
        (root / "contract.yaml").write_text(contract.dumps(), encoding="utf-8")
        for i, name in enumerate(("inputs", "outputs")):
            write_probes(root / "golden" / f"{name}.npz", {probe: pair[i] for probe, pair in (golden or {}).items()})
        for name, content in (processor or {}).items():
            (root / "processors").mkdir(exist_ok=True)
            (root / "processors" / name).write_bytes(content)
        one = Variant(precision="float32", engine=settings.engine, path="variants/fp32/model.onnx",
                      settings="variants/fp32/settings.json", **(variant or {}))  # fmt: skip
        return Manifest(schema=SCHEMA, name=contract.name, version=version, signature=contract.signature,
                        variants={"fp32": one}, default="fp32", contract=contract.digest, provenance={}, requirements={},
                        files={}, processor="text" if processor else None)  # fmt: skip

    return seal(target, fill)


def tiny_contract(name: str = "tiny", *, batch: int = 32, buckets: Sequence[int] = (4, 8, 16)) -> Contract:
    """The tiny encoder's contract: `embedding` a row a text, `tokens` a vector a token. Ids have no declared range."""
    return Contract.of(
        {
            "contract": 1,
            "name": name,
            "inputs": {
                "input_ids": {"dtype": "int64", "shape": ["batch", "seq"], "pad": 0},
                "attention_mask": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 1], "pad": 0},
            },
            "outputs": {
                "embedding": {"dtype": "float32", "shape": ["batch", VECTOR]},
                "tokens": {"dtype": "float32", "shape": ["batch", "seq", WIDTH]},
            },
            "axes": {
                "batch": {"min": 1, "max": batch},
                "seq": {"min": 1, "max": LONGEST, "buckets": list(buckets)},
            },
        }
    )


def tiny_bundle(
    folder: Path,
    *,
    name: str = "tiny",
    version: str = "1",
    settings: ServingSettings | None = None,
    text: bool = False,
    contract: Contract | None = None,
) -> Bundle:
    """A real ONNX encoder of a few hundred weights, sealed at folder/<name>/<version>: a masked mean of word vectors, then a
    linear layer. An id beyond WORDS makes the engine fail. `text` adds a tokenizer, so that `predict` takes text."""
    contract = contract or tiny_contract(name)
    buckets = contract.axes["seq"].buckets
    settings = settings or ServingSettings(batch=8, buckets={"seq": buckets} if buckets else {})
    probes = {f"probe {n}": tiny_inputs(range(1, n + 1), range(n)) for n in (1, 5, LONGEST)}
    return seal_bundle(
        folder / name / version,
        contract,
        write_tiny_model,
        settings,
        golden={k: (v, tiny_answer(v)) for k, v in probes.items()},
        processor={"tokenizer.json": tiny_tokenizer()} if text else None,
        version=version,
    )


def tiny_inputs(*rows: Sequence[int]) -> dict[str, Array]:
    """Rows of ids as one request, the shorter ones masked at their end."""
    longest = max(map(len, rows))
    ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def tiny_answer(inputs: Tensors) -> dict[str, Array]:
    """What the tiny encoder must answer, computed with numpy."""
    table, linear = _weights()
    mask = inputs["attention_mask"].astype(np.float32)[..., None]
    tokens = table[inputs["input_ids"]] * mask
    mean = tokens.sum(axis=1) / np.maximum(mask.sum(axis=1), np.float32(1))
    return {"embedding": mean @ linear, "tokens": tokens}


def _weights() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(WORDS, WIDTH)).astype(np.float32), rng.normal(size=(WIDTH, VECTOR)).astype(np.float32)


def write_tiny_model(path: Path) -> None:
    """The tiny encoder as an ONNX file."""
    from onnx import TensorProto, helper, numpy_helper, save_model  # noqa: PLC0415  an extra

    table, linear = _weights()
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Cast", ["attention_mask"], ["flat_mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["flat_mask", "last"], ["mask"]),
        node("Mul", ["words", "mask"], ["tokens"]),
        node("ReduceSum", ["tokens", "middle"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask", "middle"], ["count"], keepdims=0),
        node("Max", ["count", "one"], ["divisor"]),
        node("Div", ["sum", "divisor"], ["mean"]),
        node("MatMul", ["mean", "linear"], ["embedding"]),
    ]
    weights = {"table": table, "linear": linear, "last": np.array([2]), "middle": np.array([1]), "one": np.ones(1, np.float32)}
    ints = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("input_ids", "attention_mask")]
    floats = [
        helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", VECTOR]),
        helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["batch", "seq", WIDTH]),
    ]
    graph = helper.make_graph(nodes, "tiny", ints, floats, [numpy_helper.from_array(w, n) for n, w in weights.items()])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def tiny_tokenizer() -> bytes:
    """A tokenizer.json of one word a number, `[CLS]` in front; padding and truncation fixed, as in shipped files."""
    words = ["[PAD]", "[CLS]", "[UNK]", *(f"w{i}" for i in range(3, WORDS))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": w, "special": True, **flags} for i, w in enumerate(words[:3])]
    template = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return msgspec.json.encode(
        {
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {
                "type": "TemplateProcessing", "single": template, "pair": template,
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}},
            },
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "[UNK]"},
        }
    )  # fmt: skip


@asynccontextmanager
async def service(*bundles: Bundle | Path, engine: Echo | None = None, **options: Any) -> AsyncIterator[Service]:
    """A running service over bundles; `engine` stands in for every engine they name. `options` are those of Service."""

    def load(folder: str, name: str) -> Any:
        return engine if engine is not None and folder == "engines" else plugins.load(folder, name)

    running = Service(load=load, **options)
    try:
        for bundle in bundles:
            await running.load(bundle.root if isinstance(bundle, Bundle) else bundle)
        yield running
    finally:
        if engine is not None:
            engine.release()
        await running.close()
