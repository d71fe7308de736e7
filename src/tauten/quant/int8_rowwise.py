"""INT8 with one activation scale per row: no answer depends on the rows beside it, so batching stays exact.

A row x of activations (one token) has its own offset m = min x and range r = max x - min x. It is rescaled to [0, 1] in float
and quantised with the constant scale 1/255, q = round(255 (x - m) / r), and each output channel j of the weights W [K, N] with
its own scale s_j = max_k |W_kj| / 127, v_kj = round(W_kj / s_j). Since x ~ m + r q / 255 and W_kj ~ s_j v_kj,

    sum_k x_k W_kj  ~  r * (sum_k q_k v_kj) s_j / 255  +  m * s_j sum_k v_kj

where the first sum runs in integers (MatMulIntegerToFloat of ONNX Runtime: uint8 by int8, summed in int32) and the last is a
constant. A rounding is off by half a step at most, so the result is off by at most

    r/510 * sum_k |s_j v_kj|  +  s_j/2 * sum_k |x_k|

and a float's rounding. A constant row has r = 0: it is held at the least normal float, so q = 0 and only the exact offset
remains. A channel without weights gets the scale 1 and answers exactly zero.

The idea of a scale per token is that of ZeroQuant (Yao et al. 2022, "token-wise quantization"); the form above is written so
that it runs on ONNX Runtime's vectorised kernels, which know one scale per tensor only. Integer sums do not depend on order or
threads, so neither do the answers.

Large lookup tables (word embeddings) are stored as int8 with one scale per row of the table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tauten.formats import onnx_file
from tauten.quant._graph import load_unquantised, names_read, replace
from tauten.spec.contract import Contract, Tolerance
from tauten.spec.errors import BadModel
from tauten.spec.tensors import Array

EXTRA = "onnx"
PRECISION = "int8"
TOLERANCE = Tolerance(atol=0.2)  # measured on a six-layer text encoder: 0.11

OPERATORS = {"MatMul", "Gemm"}
SMALLEST = 4096  # weights; below, finding every row's range costs more than the integers save
LARGE_TABLE = 1 << 16  # elements of a lookup table; below, its bytes do not matter
LONGEST = (2**31 - 1) // (255 * 127)  # products that an int32 can hold the sum of
OLDEST_OPSET = 10  # QuantizeLinear
TINY = float(np.finfo(np.float32).tiny)
PREFIX = "rowwise"


def quantise(model: Path, out: Path, contract: Contract) -> None:  # noqa: ARG001  the shape every scheme has
    """Writes the quantised model. Raises BadModel when it is quantised already or has nothing to quantise."""
    proto = load_unquantised(model, OPERATORS)
    opset = next((o.version for o in proto.opset_import if o.domain in {"", "ai.onnx"}), 0)
    if opset < OLDEST_OPSET:
        raise BadModel(f"{model.name!r} has opset {opset}, too old to quantise", fix="export it with target.opset: 20")
    rewrite = _Rewrite(proto, opset)
    if not rewrite.linears:
        raise BadModel(f"no weight of {model.name!r} is worth quantising: each has fewer than {SMALLEST} elements",
                       fix="deliver it in float32: take int8 out of target.precision")  # fmt: skip
    rewrite.finish()
    if not any(o.domain == "com.microsoft" for o in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx_file.save(proto, out)


@dataclass(frozen=True, slots=True)
class _Linear:
    """A node that multiplies rows of `x` by a constant: matrix [K, N], plus an optional bias."""

    x: str
    weight: str
    matrix: Array
    bias: str = ""


class _Rewrite:
    """One graph being rewritten: every node passes once, in order, and comes out as itself or in its integer form."""

    def __init__(self, model: onnx.ModelProto, opset: int) -> None:
        self._model, self._opset = model, opset
        self._weights = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
        self._nodes: list[NodeProto] = []
        self._made: dict[str, TensorProto] = {}
        self._rows: set[str] = set()  # activations that are quantised already: attention reads the same one thrice
        self.linears = 0
        tables = self._tables()
        for node in model.graph.node:
            if linear := self._as_linear(node):
                self._linear(node, linear)
                self.linears += 1
            elif node.op_type == "Gather" and node.input[0] in tables:
                self._lookup(node)
            else:
                self._nodes.append(node)

    def finish(self) -> None:
        """Puts the new nodes and weights into the graph and drops the weights that nothing reads any more."""
        graph = self._model.graph
        replace(graph.node, self._nodes)
        gone = self._weights.keys() - names_read(self._model).keys()
        replace(graph.initializer, [*(t for t in graph.initializer if t.name not in gone), *self._made.values()])
        replace(graph.input, [v for v in graph.input if v.name not in gone])  # old files list their weights there
        replace(graph.value_info, [v for v in graph.value_info if v.name not in gone])

    def _as_linear(self, node: NodeProto) -> _Linear | None:
        """What a node multiplies its rows by; None when it does something else, or what stays in float."""
        if node.op_type not in OPERATORS or node.domain not in {"", "ai.onnx"} or node.input[1] not in self._weights:
            return None
        tensor = self._weights[node.input[1]]
        if len(tensor.dims) != 2 or tensor.dims[0] * tensor.dims[1] < SMALLEST:
            return None
        x, weight, *bias = node.input
        have = _attributes(node)
        if have.get("transA") or (any(bias) and have.get("beta", 1.0) != 1.0):
            return None
        matrix = numpy_helper.to_array(tensor).astype(np.float64) * have.get("alpha", 1.0)
        matrix = matrix.T if have.get("transB") else matrix
        if len(matrix) > LONGEST or not np.isfinite(matrix).all():
            return None
        form = f"{weight}.T" if have.get("transB") else weight
        return _Linear(x, f"{form}*{have['alpha']:g}" if have.get("alpha", 1.0) != 1.0 else form, matrix, next(iter(bias), ""))

    def _linear(self, node: NodeProto, linear: _Linear) -> None:
        q, low, width = self._quantised_rows(linear.x)
        v, scale = self._by_channel(linear.weight, linear.matrix)
        offsets = f"{v}/sum"
        out = node.output[0]
        product, grown, offset = (f"{PREFIX}/{out}/{part}" for part in ("product", "grown", "offset"))
        done = f"{PREFIX}/{out}/sum" if linear.bias else out
        step, zero = self._constant("step", np.float32(1 / 255)), self._constant("zero", np.uint8(0))
        self._add("MatMulIntegerToFloat", [q, v, step, scale, zero], product, domain="com.microsoft")
        self._nodes[-1].metadata_props.extend(node.metadata_props)  # the layer it came from
        self._add("Mul", [product, width], grown)
        self._add("Mul", [low, offsets], offset)
        self._add("Add", [grown, offset], done)
        if linear.bias:
            self._add("Add", [done, linear.bias], out)

    def _quantised_rows(self, x: str) -> tuple[str, str, str]:
        """Names of x as uint8, of every row's offset, and of its range."""
        low, high, total, alarm, spread, held, width, shifted, unit, q = (
            f"{PREFIX}/{x}/{part}"
            for part in ("min", "max", "sum", "alarm", "spread", "held", "range", "shifted", "unit", "uint8")
        )
        if x in self._rows:
            return q, low, width
        self._rows.add(x)
        for operator, name in (("ReduceMin", low), ("ReduceMax", high), ("ReduceSum", total)):
            if self._opset >= (13 if operator == "ReduceSum" else 18):  # the axes became an input
                self._add(operator, [x, self._constant("last", np.array([-1], np.int64))], name, keepdims=1)
            else:
                self._add(operator, [x], name, keepdims=1, axes=[-1])
        self._add("Sub", [high, low], spread)
        self._add("Max", [spread, self._constant("tiny", np.float32(TINY))], held)
        # The engine's minimum and maximum pass over a NaN, which would then become an integer like any other; its sum does not.
        self._add("Mul", [total, self._constant("nothing", np.float32(0))], alarm)
        self._add("Add", [held, alarm], width)
        self._add("Sub", [x, low], shifted)
        self._add("Div", [shifted, width], unit)
        step, zero = self._constant("step", np.float32(1 / 255)), self._constant("zero", np.uint8(0))
        self._add("QuantizeLinear", [unit, step, zero], q)
        return q, low, width

    def _by_channel(self, name: str, matrix: Array) -> tuple[str, str]:
        """Stores a matrix as int8 with a scale and a sum for every column."""
        v, scale = _quantised(matrix, axis=0)
        sums = (v * scale.astype(np.float64)).sum(axis=0).astype(np.float32)
        stored = self._constant(f"{name}/int8", v)
        self._constant(f"{name}/int8/sum", sums)
        return stored, self._constant(f"{name}/int8/scale", scale[0])

    def _tables(self) -> set[str]:
        """Large weights that are only looked up in, row by row."""
        lookups = Counter(
            n.input[0] for n in self._model.graph.node if n.op_type == "Gather" and _attributes(n).get("axis", 0) in {0, -2}
        )
        read = names_read(self._model)
        large = {n for n, t in self._weights.items() if len(t.dims) == 2 and t.dims[0] * t.dims[1] >= LARGE_TABLE}
        return {name for name in large if 0 < read[name] == lookups[name]}

    def _lookup(self, node: NodeProto) -> None:
        table, rows = node.input
        v, scale = _quantised(numpy_helper.to_array(self._weights[table]).astype(np.float64), axis=1)
        out = node.output[0]
        found, steps, real = (f"{PREFIX}/{out}/{part}" for part in ("int8", "scale", "float"))
        self._add("Gather", [self._constant(f"{table}/int8", v), rows], found)
        self._add("Gather", [self._constant(f"{table}/int8/scale", scale), rows], steps)
        self._add("Cast", [found], real, to=TensorProto.FLOAT)
        self._add("Mul", [real, steps], out)

    def _constant(self, name: str, value: Array | np.generic) -> str:
        name = f"{PREFIX}/{name}"
        self._made.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> None:
        self._nodes.append(
            helper.make_node(operator, inputs, [output], name=f"{output}:{operator}", domain=domain, **attributes)
        )


def _quantised(values: Array, axis: int) -> tuple[Array, Array]:
    """(int8, float32 scales along the other axis); a channel of zeros gets the scale 1."""
    most = np.abs(values).max(axis=axis, keepdims=True)
    scale = np.where(most > 0, np.maximum(most / 127, TINY), 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -127, 127).astype(np.int8), scale


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
