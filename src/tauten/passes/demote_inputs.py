"""Weights are not inputs: a stored weight that is also listed as a graph input is taken out of the inputs.

From IR version 4 on such a weight is only a default, which every client could override by sending an input of its name. Before,
each weight had to be listed, and no runtime let clients set it; those files stay as they are.
"""

from __future__ import annotations

from pathlib import Path

from tauten.formats import onnx_file
from tauten.spec.contract import Contract

EXTRA = "onnx"
OVERRIDABLE_FROM_IR = 4


def apply(model: Path, out: Path, contract: Contract) -> bool:  # noqa: ARG001  the shape every pass has
    """Writes `out` when there was such a weight; says whether. Raises BadModel for a file that cannot be read."""
    proto = onnx_file.load(model)
    graph = proto.graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    kept = [value for value in graph.input if value.name not in stored]
    if proto.ir_version < OVERRIDABLE_FROM_IR or len(kept) == len(graph.input):
        return False
    del graph.input[:]
    graph.input.extend(kept)
    onnx_file.save(proto, out)
    return True
