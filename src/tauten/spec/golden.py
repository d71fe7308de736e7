"""Golden probes on disk: tensors by probe and name, in an archive with keys `<probe>/<tensor>`.

Names of tensors may have slashes, as frameworks write them; those of a probe are quoted. Strings are stored as fixed-width
Unicode, so nothing in an archive is pickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from tauten.spec.errors import BadBundle
from tauten.spec.tensors import Array


def write_probes(path: Path, probes: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes the archive, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = {f"{quote(p, safe=' =')}/{name}": value for p, tensors in probes.items() for name, value in tensors.items()}
    stored = {key: value.astype(np.str_) if value.dtype == object else value for key, value in flat.items()}
    np.savez(path, **stored)  # type: ignore[arg-type]  # its stub takes the names for flags


def read_probes(path: Path) -> dict[str, dict[str, Array]]:
    """What `write_probes` wrote; strings as objects. Raises BadBundle."""
    found: dict[str, dict[str, Array]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for key in archive.files:
                probe, _, name = key.partition("/")
                value = archive[key]
                found.setdefault(unquote(probe), {})[name] = value.astype(object) if value.dtype.kind == "U" else value
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadBundle(f"{path.name} cannot be read: {error}", fix="build the bundle again") from error
    return found
