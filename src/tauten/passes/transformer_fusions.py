"""Transformer blocks as one operator each: attention, layer norms with their residual, GELU with its bias, embeddings.

It is ONNX Runtime's public offline tool (onnxruntime.transformers.optimizer) at level 0: pattern fusions only, without the
runtime's own optimiser, whose result would be bound to this processor. The fused operators are of the domain com.microsoft,
which every build of ONNX Runtime brings along.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
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
    options = FusionOptions("bert")
    # The tool's default turns the mask into a length, which is wrong for masks with holes or with padding on the left.
    options.use_raw_attention_mask(True)
    try:
        with quiet():
            # 0: the number of heads and the hidden size are read from the graph
            done = optimizer.optimize_model(
                copy, "bert", num_heads=0, hidden_size=0, optimization_options=options, opt_level=0, use_gpu=False
            )
    except Exception as error:  # a tool of others on any graph: whatever it meets, this graph cannot be fused
        raise Unsupported(f"the fusion tool fails on this graph: {error!r:.300}", fix="deliver it unfused") from error
    fused: onnx.ModelProto = done.model
    fused.producer_name, fused.producer_version = model.producer_name, model.producer_version
    return fused


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
