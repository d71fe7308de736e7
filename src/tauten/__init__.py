"""tauten ships trained models under a delivery contract. The names below are the whole public Python surface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tauten.app import serve
    from tauten.client import Client
    from tauten.spec.bundle import Bundle
    from tauten.spec.contract import Contract
    from tauten.spec.errors import NotHeld, TautenError
    from tauten.spec.verdict import Judgement, Verdict
    from tauten.workbench import check, deliver

__all__ = ["Bundle", "Client", "Contract", "Judgement", "NotHeld", "TautenError", "Verdict", "check", "deliver", "serve"]

_HOME = {
    "Bundle": "tauten.spec.bundle", "Client": "tauten.client", "Contract": "tauten.spec.contract",
    "Judgement": "tauten.spec.verdict", "NotHeld": "tauten.spec.errors", "TautenError": "tauten.spec.errors",
    "Verdict": "tauten.spec.verdict", "check": "tauten.workbench", "deliver": "tauten.workbench", "serve": "tauten.app",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imported when first asked for, so that `import tauten.spec` stays quick and needs nothing else."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tauten' has no attribute {name!r}")
