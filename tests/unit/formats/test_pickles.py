"""What a pickle would do is read off it, never done."""

import collections
import os
import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauten.formats import pickles


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read_and_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(["text", collections.Counter(), Evil(marker), "more"], protocol))
    found = pickles.globals_of(path)
    assert {"posix.mkdir", "collections.Counter"} <= set(found)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists(), "loading it would really have run"


def test_a_module_name_that_was_memoized_is_resolved(tmp_path: Path) -> None:
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps([collections.OrderedDict(), collections.Counter(), collections.OrderedDict()], 4))
    assert pickles.globals_of(path) == ["collections.OrderedDict", "collections.Counter"]


def test_pickles_one_after_the_other_are_all_read(tmp_path: Path) -> None:
    file = BytesIO()
    pickle.dump(1, file)
    pickle.dump(Evil(tmp_path / "ran"), file)
    path = tmp_path / "old.pt"
    path.write_bytes(file.getvalue() + b"tail")
    assert pickles.globals_of(path) == ["posix.mkdir"]


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_the_kind_is_told_by_what_is_inside_and_not_by_the_name(tmp_path: Path) -> None:
    code = pickle.dumps({})
    assert pickles.kind_of(archive(tmp_path / "a.pt", {"a/data.pkl": code})) == "pickle"
    assert (
        pickles.kind_of(archive(tmp_path / "b.pt", {"b/data.pkl": code, "b/code/x.py": b"", "b/constants.pkl": code}))
        == "torchscript"
    )
    assert (
        pickles.kind_of(archive(tmp_path / "c.pt", {"c/models/model.json": b"{}", "c/archive_format": b"pt2"}))
        == "torch_export"
    )
    assert pickles.kind_of(archive(tmp_path / "d.pt", {"readme": b""})) == ""
    (tmp_path / "raw.pt").write_bytes(code)
    (tmp_path / "text.pt").write_bytes(b"hello")
    assert [pickles.kind_of(tmp_path / n) for n in ("raw.pt", "text.pt")] == ["pickle", ""]


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("torch._utils._rebuild_tensor_v2", True), ("torch.FloatStorage", True), ("collections.OrderedDict", True),
        ("torch._utils._rebuild_parameter", True), ("torch.hub.load", False), ("torch.load", False), ("builtins.exec", False),
        ("torch._utils_internal.x", False), ("__main__.Model", False),
    ],
)  # fmt: skip
def test_only_rebuilding_tensors_is_harmless(name: str, fine: bool) -> None:
    assert pickles.harmless(name) is fine


@given(st.binary(max_size=300))
def test_noise_never_raises(noise: bytes) -> None:
    assert isinstance(list(pickles._globals(noise)), list)
    assert isinstance(list(pickles._globals(pickle.dumps(collections.OrderedDict()) + noise)), list)
