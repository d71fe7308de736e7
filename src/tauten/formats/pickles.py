"""What a pickle would do, read from its instructions without carrying out any of them."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

# Modules whose names in a checkpoint only rebuild tensors and containers.
HARMLESS = ("torch._utils._rebuild_", "torch._tensor._rebuild_", "torch.storage.", "collections.OrderedDict", "torch.Size")


def kind_of(path: Path) -> str:
    """What a file is: torchscript, torch_export, pickle, or empty for none of them."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return "pickle" if file.read(1) == b"\x80" or path.suffix in {".pkl", ".pickle"} else ""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(n.split("/")[1:2] == ["code"] or n.endswith("/constants.pkl") for n in names):
        return "torchscript"
    if any(n.endswith("data.pkl") for n in names):
        return "pickle"
    exported = any(n.endswith(("serialized_exported_program.json", "archive_format")) or "/models/" in n for n in names)
    return "torch_export" if exported else ""


def globals_of(path: Path) -> list[str]:
    """Every `module.name` that loading the file would import, in order; in an archive, of all pickles in it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            codes = [archive.read(n) for n in archive.namelist() if n.endswith(".pkl")]
    else:
        codes = [path.read_bytes()]
    return list(dict.fromkeys(name for code in codes for name in _globals(code)))


def harmless(name: str) -> bool:
    """Whether a global only rebuilds tensors: a type of storage, a dtype, or one of a few functions."""
    return name.startswith(HARMLESS) or (name.startswith("torch.") and name.count(".") == 1 and name.endswith("Storage"))


def _globals(code: bytes) -> Iterator[str]:
    """Names of one file's pickles, which may stand one after the other; ends where it is damaged or no pickle any more."""
    stream = BytesIO(code)
    while stream.tell() < len(code):
        pushed: list[str] = []  # what was pushed last, as far as it is text: STACK_GLOBAL takes two of them
        memo: dict[int, str] = {}
        try:
            argument: Any
            for opcode, argument, _ in pickletools.genops(stream):
                match opcode.name:
                    case "GLOBAL" | "INST":
                        yield str(argument).replace(" ", ".")
                    case "STACK_GLOBAL":
                        yield ".".join(["?", "?", *pushed][-2:])
                    case "MEMOIZE":
                        memo[len(memo)] = pushed[-1] if pushed else ""
                    case "PUT" | "BINPUT" | "LONG_BINPUT":
                        memo[int(argument)] = pushed[-1] if pushed else ""
                    case "GET" | "BINGET" | "LONG_BINGET":
                        pushed.append(memo.get(int(argument), "?"))
                    case _:
                        if isinstance(argument, str):
                            pushed.append(argument)
        except (ValueError, IndexError, UnicodeDecodeError):
            return
