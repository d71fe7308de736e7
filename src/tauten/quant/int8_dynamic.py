"""INT8 with one weight scale per tensor: the smallest and coarsest scheme."""

from __future__ import annotations

from pathlib import Path

from tauten.quant import _dynamic
from tauten.spec.contract import Contract, Tolerance

EXTRA = "onnx"
PRECISION = "int8"
TOLERANCE = Tolerance(atol=0.9)  # measured on a six-layer text encoder: 0.69


def quantise(model: Path, out: Path, contract: Contract) -> None:  # noqa: ARG001  the shape every scheme has
    """Writes the quantised model. Raises BadModel when it is quantised already or has nothing to quantise."""
    _dynamic.quantise(model, out, per_channel=False)
