"""Element types and tensor specifications. One table holds every name a type has: ours, ONNX, numpy, wire, torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dim = int | str  # a fixed size, or the name of an axis


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type under all its names. `wire` is the Open Inference Protocol's name.

    bfloat16 has no numpy type: it is carried as its bit pattern in uint16.
    """

    name: str
    onnx: int
    numpy: np.dtype[Any]
    wire: str
    torch: str

    @property
    def size(self) -> int:
        """Bytes per element; 0 for strings, which have no fixed size."""
        return 0 if self.name == "string" else self.numpy.itemsize

    @property
    def floating(self) -> bool:
        return self.name in {"float64", "float32", "float16", "bfloat16"}

    @property
    def integer(self) -> bool:
        return self.name.startswith(("int", "uint"))


def _type(name: str, onnx: int, wire: str, *, numpy: str = "", torch: str = "") -> ElementType:
    return ElementType(name, onnx, np.dtype(numpy or name), wire, torch or name)


# The numbers are onnx.TensorProto.DataType.
ELEMENT_TYPES: dict[str, ElementType] = {
    t.name: t
    for t in (
        _type("float32", 1, "FP32"), _type("uint8", 2, "UINT8"), _type("int8", 3, "INT8"),
        _type("uint16", 4, "UINT16"), _type("int16", 5, "INT16"), _type("int32", 6, "INT32"),
        _type("int64", 7, "INT64"), _type("string", 8, "BYTES", numpy="object"), _type("bool", 9, "BOOL"),
        _type("float16", 10, "FP16"), _type("float64", 11, "FP64"), _type("uint32", 12, "UINT32"),
        _type("uint64", 13, "UINT64"), _type("bfloat16", 16, "BF16", numpy="uint16"),
    )
}  # fmt: skip
BY_ONNX = {t.onnx: t for t in ELEMENT_TYPES.values()}
BY_WIRE = {t.wire: t for t in ELEMENT_TYPES.values()}


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one input or output must be.

    shape     axis names and fixed sizes, mixed
    range     lowest and highest value that clients may send and that probes are drawn from
    pad       the value that fills up to a bucket; an input without one is never padded
    optional  clients may leave the input out; `default` then fills it
    """

    dtype: str
    shape: tuple[Dim, ...]
    range: tuple[float, float] | None = None
    pad: int | float | bool | None = None
    optional: bool = False
    default: int | float | bool | None = None

    @property
    def element(self) -> ElementType:
        return ELEMENT_TYPES[self.dtype]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the dynamic axes, in order of position."""
        return tuple(d for d in self.shape if isinstance(d, str))

    def sized(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The concrete shape for given axis sizes."""
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.shape)

    def describe(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
