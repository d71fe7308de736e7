"""ONNX Runtime's dynamic quantisation: weights as int8 in the file, activations as uint8 with a scale found at run time.

That scale is one for the whole activation tensor, so a row's answer depends on the rows beside it: these schemes are for models
that are served one row at a time, or whose batch tolerance is wide.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from tauten.formats import onnx_file
from tauten.formats.quiet import quiet
from tauten.quant._graph import load_unquantised

OPERATORS = {"MatMul", "Gemm", "Conv"}


def quantise(model: Path, out: Path, *, per_channel: bool) -> None:
    """One weight scale per tensor, or per output channel. Raises BadModel."""
    proto = load_unquantised(model, OPERATORS)
    with tempfile.TemporaryDirectory(prefix="tauten-") as folder, quiet():
        raw = Path(folder) / "model.onnx"
        quantize_dynamic(
            proto,  # given a path, the tool would write beside the model
            raw,
            per_channel=per_channel,
            weight_type=QuantType.QInt8,
            # the type of values that shape inference does not reach, behind com.microsoft operators
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        onnx_file.save(onnx_file.load(raw), out)
