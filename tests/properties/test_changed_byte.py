"""One changed byte anywhere in a bundle is found before anything of it is opened."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauten import testing
from tauten.spec.bundle import MANIFEST, Bundle
from tauten.spec.errors import BadBundle


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return testing.tiny_bundle(Path(tmp_path_factory.mktemp("sealed")), text=True).root


@pytest.fixture(scope="module")
def files(sealed: Path) -> list[str]:
    return sorted(p.relative_to(sealed).as_posix() for p in sealed.rglob("*") if p.is_file())


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "1"))


def test_the_bundle_itself_opens(copy: Path, files: list[str]) -> None:
    assert Bundle.open(copy).manifest.name == "tiny"
    assert {"manifest.json", "contract.yaml", "golden/inputs.npz", "processors/tokenizer.json"} <= set(files)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_found(sealed: Path, files: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([f for f in files if f != MANIFEST]))
    path = sealed / name
    before = path.read_bytes()
    place, bits = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(before[:place] + bytes([before[place] ^ bits]) + before[place + 1 :])
    try:
        with pytest.raises(BadBundle, match=name):
            Bundle.open(sealed)
    finally:
        path.write_bytes(before)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_in_the_manifest_is_refused_or_is_another_identity(sealed: Path, data: st.DataObject) -> None:
    """The manifest's own SHA-256 is the identity: a change that still parses is another bundle, never the same one."""
    path = sealed / MANIFEST
    before = path.read_bytes()
    identity = Bundle.open(sealed).identity
    place, bits = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(before[:place] + bytes([before[place] ^ bits]) + before[place + 1 :])
    try:
        assert Bundle.open(sealed).identity != identity
    except BadBundle:
        pass
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("change", ["cut", "grown", "removed", "added", "linked"])
def test_so_is_any_other_change(copy: Path, files: list[str], change: str) -> None:
    for name in (f for f in files if f != MANIFEST):
        path, before = copy / name, (copy / name).read_bytes()
        match change:
            case "cut":
                path.write_bytes(before[:-1])
            case "grown":
                path.write_bytes(before + b"\0")
            case "removed":
                path.unlink()
            case "added":
                (path.parent / "extra").write_bytes(b"")
            case "linked":
                path.unlink()
                (copy.parent / "elsewhere").write_bytes(before)
                path.symlink_to(copy.parent / "elsewhere")
        with pytest.raises(BadBundle):
            Bundle.open(copy)
        (path.parent / "extra").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(before)
    assert Bundle.open(copy)
