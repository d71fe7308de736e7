"""The sealed unit: whole or not at all, and opened only when every byte is as it was sealed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tauten import testing
from tauten.spec.bundle import MANIFEST, Bundle, Manifest, hash_tree, seal, sha256
from tauten.spec.engine import ServingSettings
from tauten.spec.errors import AlreadyExists, BadBundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    def model(path: Path) -> None:
        path.write_bytes(b"weights")

    return testing.seal_bundle(tmp_path / "tiny" / "1", testing.tiny_contract(), model, ServingSettings(batch=4))


def test_what_was_sealed_is_read_back(bundle: Bundle) -> None:
    again = Bundle.open(bundle.root)
    assert again.identity == bundle.identity == "sha256:" + sha256(bundle.root / MANIFEST)
    assert again.manifest == bundle.manifest
    assert again.contract() == testing.tiny_contract()
    assert again.settings() == ServingSettings(batch=4)
    assert again.model_path().read_bytes() == b"weights"
    assert repr(again) == f"<Bundle tiny/1 fp32 {bundle.identity[:19]}>"


def test_every_file_but_the_manifest_is_listed_with_hash_and_size(bundle: Bundle) -> None:
    there = {p.relative_to(bundle.root).as_posix() for p in bundle.root.rglob("*") if p.is_file()}
    assert set(bundle.manifest.files) == there - {MANIFEST}
    entry = bundle.manifest.files["variants/fp32/model.onnx"]
    assert (entry.size, entry.sha256) == (7, sha256(bundle.model_path()))


def add(path: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / path).write_bytes(b"new")

    return change


def edit(path: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        data[0] ^= 1
        (root / path).write_bytes(bytes(data))

    return change


def link(root: Path) -> None:
    """The same bytes, but under a name that the manifest does not hash."""
    model = root / "variants/fp32/model.onnx"
    model.rename(model.with_name("other"))
    model.symlink_to("other")


def link_outside(root: Path) -> None:
    """The same bytes, but somebody else may change them later."""
    model = root / "variants/fp32/model.onnx"
    model.rename(root.parent / "elsewhere")
    model.symlink_to(root.parent / "elsewhere")


def manifest(**changes: object) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        data = json.loads((root / MANIFEST).read_text())
        (root / MANIFEST).write_text(json.dumps(data | changes))

    return change


def variant(**changes: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        variants = json.loads((root / MANIFEST).read_text())["variants"]
        manifest(variants={"fp32": variants["fp32"] | changes})(root)

    return change


def other_signature(root: Path) -> None:
    signature = json.loads((root / MANIFEST).read_text())["signature"]
    signature["axes"]["batch"]["max"] += 1
    manifest(signature=signature)(root)


def other_contract(root: Path) -> None:
    """A whole swap: the file and its hash, so that only the digest in the manifest tells."""
    text = testing.tiny_contract("other").dumps()
    (root / "contract.yaml").write_text(text)
    manifest(files={k: msgspec.to_builtins(v) for k, v in hash_tree(root).items()})(root)


def outside(root: Path) -> None:
    (root.parent / "secret").write_bytes(b"x")
    files = json.loads((root / MANIFEST).read_text())["files"]
    manifest(files=files | {"../secret": {"sha256": sha256(root.parent / "secret"), "size": 1}})(root)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit("variants/fp32/model.onnx"), "'variants/fp32/model.onnx' has SHA-256"),
        (edit("contract.yaml"), "'contract.yaml' has SHA-256"),
        (lambda root: os.truncate(root / "contract.yaml", 5), "'contract.yaml' has 5 bytes, the manifest says"),
        (lambda root: (root / "contract.yaml").unlink(), "'contract.yaml' of the manifest is missing"),
        (add("variants/extra.onnx"), "'variants/extra.onnx' is not in the manifest"),
        (link, "'variants/fp32/other' is not in the manifest"),
        (link_outside, "'variants/fp32/model.onnx', which is outside the bundle"),
        (lambda root: (root / "dangling").symlink_to("nowhere"), "'dangling' is not in the manifest"),
        (outside, "'../secret', which is outside the bundle"),
        (variant(path="../../model.onnx"), "variant 'fp32' wants '../../model.onnx', which is not in the manifest"),
        (variant(settings="/etc/passwd"), "variant 'fp32' wants '/etc/passwd', which is not in the manifest"),
        (manifest(name="../other"), "name and signature are not the contract's"),
        (other_signature, "name and signature are not the contract's"),
        (other_contract, "contract.yaml has digest"),
        (manifest(schema=2), "has bundle schema 2, this tauten reads 1"),
        (manifest(surprise=1), "cannot be read: Object contains unknown field `surprise`"),
        (lambda root: (root / MANIFEST).write_text("{"), "cannot be read"),
        (lambda root: (root / MANIFEST).unlink(), "manifest.json is missing"),
    ],
)
def test_damage_is_named(bundle: Bundle, damage: Callable[[Path], None], message: str) -> None:
    damage(bundle.root)
    with pytest.raises(BadBundle) as caught:
        Bundle.open(bundle.root)
    assert message in caught.value.message
    assert caught.value.fix


def test_an_unknown_variant_is_told_which_there_are(bundle: Bundle) -> None:
    with pytest.raises(BadBundle, match="no variant 'int8'") as caught:
        bundle.variant("int8")
    assert "fp32" in caught.value.fix


def test_settings_that_cannot_be_read(bundle: Bundle) -> None:
    (bundle.root / bundle.variant().settings).write_bytes(b"\0")
    with pytest.raises(BadBundle, match="cannot be read"):
        bundle.settings()


def test_of_two_builds_to_one_place_the_first_wins(tmp_path: Path, bundle: Bundle) -> None:
    target = tmp_path / "raced"

    def fill(root: Path) -> Manifest:
        shutil.copytree(bundle.root, target)  # another build was quicker
        (root / "contract.yaml").write_text("late")
        return bundle.manifest

    with pytest.raises(AlreadyExists, match="another build was first"):
        seal(target, fill)
    assert Bundle.open(target).identity == bundle.identity
    assert not list(tmp_path.glob(".raced*"))


def test_a_target_that_exists_is_left_alone(bundle: Bundle) -> None:
    def never(_: Path) -> Manifest:
        raise AssertionError("bug: nothing is filled when the target exists")

    with pytest.raises(AlreadyExists, match="exists already"):
        seal(bundle.root, never)
    assert Bundle.open(bundle.root).identity == bundle.identity


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    def fill(root: Path) -> Manifest:
        (root / "half").write_bytes(b"half written")
        raise error

    target = tmp_path / "out" / "model-1"
    with pytest.raises(type(error)):
        seal(target, fill)
    assert list(target.parent.iterdir()) == []


def test_sealing_twice_gives_the_same_identity(tmp_path: Path) -> None:
    one, two = (testing.tiny_bundle(tmp_path / name) for name in ("a", "b"))
    changed = {k for k in one.manifest.files if one.manifest.files[k] != two.manifest.files[k]}
    assert changed <= {"golden/inputs.npz", "golden/outputs.npz"}  # zip files carry the time of day
    assert one.manifest.contract == two.manifest.contract


def test_sealed_directories_can_be_read_by_others(bundle: Bundle) -> None:
    assert bundle.root.stat().st_mode & 0o777 == 0o755
