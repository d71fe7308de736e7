"""The sealed unit: a directory whose manifest has the SHA-256 and size of every file in it.

It appears whole or not at all (written beside the target, synced, renamed), and is opened only after every file was hashed
again. Its identity is the SHA-256 of manifest.json.

Golden probes are archives (see golden.py): golden/inputs.npz, golden/outputs.npz with the reference framework's answers, and,
beside a variant's model, answers.npz with the variant's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tauten.spec.contract import Contract
from tauten.spec.engine import ServingSettings
from tauten.spec.errors import AlreadyExists, BadBundle
from tauten.spec.signature import Signature

SCHEMA = 1
MANIFEST = "manifest.json"
CHUNK = 1 << 20


class FileEntry(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One deliverable form of the model. `path` and `settings` are relative to the bundle."""

    precision: str
    engine: str
    path: str
    settings: str
    batch_independent: bool = True
    padding_independent: bool = True


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bundle is. `default` names the variant to serve; `requirements` what the serving machine must have."""

    schema: int
    name: str
    version: str
    signature: Signature
    variants: dict[str, Variant]
    default: str
    contract: str
    provenance: dict[str, Any]
    requirements: dict[str, str]
    files: dict[str, FileEntry]
    processor: str | None = None


class Bundle:
    """A verified bundle on disk."""

    def __init__(self, root: Path, manifest: Manifest, identity: str) -> None:
        self.root, self.manifest, self.identity = root, manifest, identity

    def __repr__(self) -> str:
        m = self.manifest
        return f"<Bundle {m.name}/{m.version} {m.default} {self.identity[:19]}>"

    @classmethod
    def open(cls, root: str | Path) -> Bundle:
        """Reads the manifest and hashes every file against it. Raises BadBundle naming the file that differs."""
        root = Path(root)
        try:
            raw = (root / MANIFEST).read_bytes()
            manifest = msgspec.json.decode(raw, type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise BadBundle(f"{str(root)!r} is not a bundle: {MANIFEST} {_reason(error)}",
                            fix="give a directory that 'tauten build' wrote") from error  # fmt: skip
        if manifest.schema != SCHEMA:
            raise BadBundle(f"{str(root)!r} has bundle schema {manifest.schema}, this tauten reads {SCHEMA}",
                            fix="build the bundle again with this version")  # fmt: skip
        _verify_files(root, manifest)
        bundle = cls(root, manifest, "sha256:" + hashlib.sha256(raw).hexdigest())
        if (digest := bundle.contract().digest) != manifest.contract:
            raise BadBundle(f"contract.yaml has digest {digest}, the manifest says {manifest.contract}", fix=_REBUILD)
        _verify_facts(manifest, bundle.contract())
        return bundle

    def contract(self) -> Contract:
        return Contract.load(self.root / "contract.yaml")

    def variant(self, name: str = "") -> Variant:
        """A variant by name, or the default one."""
        name = name or self.manifest.default
        if name not in self.manifest.variants:
            raise BadBundle(f"bundle has no variant {name!r}", fix=f"use one of {', '.join(self.manifest.variants)}")
        return self.manifest.variants[name]

    def settings(self, name: str = "") -> ServingSettings:
        raw = (self.root / self.variant(name).settings).read_bytes()
        try:
            return msgspec.json.decode(raw, type=ServingSettings)
        except msgspec.DecodeError as error:
            raise BadBundle(f"{self.variant(name).settings!r} {_reason(error)}", fix=_REBUILD) from error

    def model_path(self, name: str = "") -> Path:
        return self.root / self.variant(name).path


_REBUILD = "fetch or build the bundle again; never edit a sealed one"


def seal(target: Path, fill: Callable[[Path], Manifest]) -> Bundle:
    """Writes a bundle so that it appears whole or not at all.

    `fill` puts every file but the manifest into the directory it is given and returns a manifest whose `files` are empty: they
    are hashed here. Raises AlreadyExists when the target is there; on any failure nothing is left behind.
    """
    if target.exists():
        raise AlreadyExists(f"{str(target)!r} exists already", fix="give another -o, or remove it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        work.chmod(0o755)
        manifest = msgspec.structs.replace(fill(work), files=hash_tree(work))
        text = json.dumps(msgspec.to_builtins(manifest), indent=1, sort_keys=True) + "\n"
        (work / MANIFEST).write_text(text, encoding="utf-8")
        sync_tree(work)
        _publish(work, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return Bundle.open(target)


def _publish(work: Path, target: Path) -> None:
    try:
        os.rename(work, target)
    except OSError as error:
        if not target.exists():
            raise
        raise AlreadyExists(f"{str(target)!r} exists already: another build was first", fix="give another -o") from error


def hash_tree(root: Path) -> dict[str, FileEntry]:
    """SHA-256 and size of every file under `root`, by its path with forward slashes; the manifest left out."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.relative_to(root).as_posix() != MANIFEST)
    return {p.relative_to(root).as_posix(): FileEntry(sha256(p), p.stat().st_size) for p in files}


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync_tree(root: Path) -> None:
    """Flushes files and directories to disk, deepest first, so that a rename publishes only what is really there."""
    for path in sorted(root.rglob("*"), reverse=True):
        _sync(path)
    _sync(root)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verify_files(root: Path, manifest: Manifest) -> None:
    there = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_symlink() or not p.is_dir()} - {MANIFEST}
    if extra := sorted(there - set(manifest.files)):
        raise BadBundle(f"{extra[0]!r} is not in the manifest", fix=_REBUILD)
    for name, entry in manifest.files.items():
        path = root / name
        if not path.resolve().is_relative_to(root.resolve()):
            raise BadBundle(f"the manifest names {name!r}, which is outside the bundle", fix=_REBUILD)
        if name not in there or path.is_symlink():
            raise BadBundle(f"{name!r} of the manifest is missing", fix=_REBUILD)
        if (size := path.stat().st_size) != entry.size:
            raise BadBundle(f"{name!r} has {size} bytes, the manifest says {entry.size}", fix=_REBUILD)
        if (found := sha256(path)) != entry.sha256:
            raise BadBundle(f"{name!r} has SHA-256 {found[:12]}…, the manifest says {entry.sha256[:12]}…", fix=_REBUILD)


def _verify_facts(manifest: Manifest, contract: Contract) -> None:
    """What the manifest says of the contract and of its files is what is there."""
    if manifest.name != contract.name or manifest.signature != contract.signature:
        raise BadBundle("the manifest's name and signature are not the contract's", fix=_REBUILD)
    for name, variant in manifest.variants.items():
        for file in (variant.path, variant.settings):
            if file not in manifest.files:
                raise BadBundle(f"variant {name!r} wants {file!r}, which is not in the manifest", fix=_REBUILD)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
