"""Golden probes come back as they were written, whatever they are called, and nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tauten.spec.errors import BadBundle
from tauten.spec.golden import read_probes, write_probes


def test_names_with_slashes_and_texts_come_back(tmp_path: Path) -> None:
    probes = {
        "random batch=2": {"dense/BiasAdd:0": np.ones((2, 3), np.float32), "é": np.array(["Grüße", ""], dtype=object)},
        "high a/b=2 50%": {"file": np.array(7)},
    }
    write_probes(tmp_path / "golden" / "inputs.npz", probes)
    found = read_probes(tmp_path / "golden" / "inputs.npz")
    assert {p: list(t) for p, t in found.items()} == {p: list(t) for p, t in probes.items()}
    for probe, tensors in probes.items():
        for name, value in tensors.items():
            assert found[probe][name].dtype == value.dtype
            np.testing.assert_array_equal(found[probe][name], value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text"])
def test_a_damaged_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "inputs.npz").write_bytes(content)
    with pytest.raises(BadBundle, match=r"inputs\.npz cannot be read"):
        read_probes(tmp_path / "inputs.npz")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **{"probe/x": np.array([{}], dtype=object)})  # type: ignore[arg-type]  # the stub takes the names for its flag
    with pytest.raises(BadBundle, match="allow_pickle"):
        read_probes(tmp_path / "inputs.npz")
