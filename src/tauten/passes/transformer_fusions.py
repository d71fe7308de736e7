"""Transformer blocks as one operator each: attention, layer norms with their residual, GELU with its bias, embeddings.

It is ONNX Runtime's public offline tool (onnxruntime.transformers.optimizer) at its level 0: pattern fusions only, without the
runtime's own optimiser, whose result would be bound to this processor. The fused operators are of the domain com.microsoft,
which every build of ONNX Runtime brings along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

from tauten.formats import onnx_facts, onnx_file
from tauten.formats.quiet import quiet
from tauten.spec.contract import Contract
from tauten.spec.errors import Unsupported

EXTRA = "onnx"
MICROSOFT = "com.microsoft"

# Operators that only a fusion makes, or that stand for several simpler ones.
FUSED = {
    "Attention", "MultiHeadAttention", "EmbedLayerNormalization", "LayerNormalization", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Gelu", "FastGelu", "BiasGelu", "RotaryEmbedding",
}  # fmt: skip


def apply(model: Path, out: Path, contract: Contract) -> bool:  # noqa: ARG001  the shape every pass has
    """Writes `out` when more fused operators came out than went in; says whether.

    Raises BadModel for a file that cannot be read, Unsupported when the tool fails on the graph.
    """
    before = onnx_file.load(model)
    after = _fused(before)
    gained = _count(after) - _count(before)
    if not gained:
        return False
    _declare_domains(after)
    if trouble := onnx_file.invalid(after):
        raise Unsupported(f"the fusions make {model.name!r} invalid: {trouble}", fix="deliver it unfused")
    onnx_file.save(after, out)
    return True


def _fused(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    heads, hidden = _heads(model.graph)
    options = FusionOptions("bert")
    # The tool's default turns the mask into a length, which is wrong for masks with holes or with padding on the left.
    options.use_raw_attention_mask(True)
    try:
        with quiet():
            done = optimizer.optimize_by_fusion(copy, "bert", heads, hidden, options)
    except Exception as error:  # a tool of others on any graph: whatever it meets, this graph cannot be fused
        raise Unsupported(f"the fusion tool fails on this graph: {error!r:.300}", fix="deliver it unfused") from error
    fused: onnx.ModelProto = done.model
    fused.producer_name, fused.producer_version = model.producer_name, model.producer_version
    return fused


def _heads(graph: onnx.GraphProto) -> tuple[int, int]:
    """Number of attention heads and their joint width, as the graph splits them: a linear layer of that width, Reshape to
    [batch, seq, heads, size], Transpose to [batch, heads, seq, size]. (0, 0) where none does: then the tool looks for itself.

    The tool alone finds them only where the whole shape is one constant, which it is not with dynamic axes.
    """
    writers = {name: node for node in graph.node for name in node.output}
    stored = {t.name: t for t in graph.initializer}
    found: Counter[tuple[int, int]] = Counter()
    for node in graph.node:
        split = writers.get(node.input[0]) if node.op_type == "Transpose" else None
        if split is None or split.op_type != "Reshape" or list(_attribute(node, "perm") or ()) != [0, 2, 1, 3]:
            continue
        shape, linear = writers.get(split.input[1]), writers.get(split.input[0])
        parts = shape.input if shape is not None and shape.op_type == "Concat" else split.input[1:]
        size = _last_number(parts[-1], writers, stored)
        weights = [stored[name] for name in (linear.input if linear else ()) if name in stored]
        width = weights[-1].dims[-1] if weights and weights[-1].dims else 0  # of the bias, where there is one
        if size > 0 and width > size and width % size == 0:
            found[width // size, width] += 1
    return found.most_common(1)[0][0] if found else (0, 0)


def _last_number(name: str, writers: Mapping[str, onnx.NodeProto], stored: Mapping[str, onnx.TensorProto]) -> int:
    """Of a constant; 0 for what is known only at run time."""
    node = writers.get(name)
    tensor = _attribute(node, "value") if node is not None and node.op_type == "Constant" else stored.get(name)
    return int(onnx.numpy_helper.to_array(tensor).ravel()[-1]) if tensor is not None and 0 not in tensor.dims else 0


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.op_type in FUSED)


def _declare_domains(model: onnx.ModelProto) -> None:
    """Names the domains that operators are of, and no other: an engine must know every domain that a file names."""
    used = {node.domain for node in onnx_facts.nodes(model)}
    declared = {opset.domain: opset.version for opset in model.opset_import}
    kept = {domain: version for domain, version in declared.items() if domain in used | {"", "ai.onnx"}}
    if MICROSOFT in used:
        kept.setdefault(MICROSOFT, 1)
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in kept.items())
