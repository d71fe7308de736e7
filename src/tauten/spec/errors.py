"""Every error that tauten raises on purpose, as one tree. Neutral of transport: a front maps `code`, nothing else.

TautenError
├── BadInput                what was given cannot be used; the message says what, what is allowed, and the fix
│   ├── BadUsage            a flag or an argument
│   ├── BadContract         the delivery contract: unknown key, wrong type, bounds that contradict each other
│   ├── BadSource           the model that was handed over: missing, of no known kind, unsafe
│   ├── BadModel            a model file that is damaged or is not what its name says
│   ├── BadBundle           a sealed bundle whose files do not match its manifest
│   └── BadRequest          an inference request: name, type, shape, length, bound, value
├── NotHeld                 a gate or a clause said no; carries the judgement
├── Undecided               not enough evidence to say yes or no; carries the judgement
├── Lacking                 this machine lacks something
│   ├── MissingExtra        an optional dependency is not installed
│   └── PortInUse           somebody else listens there
├── ExportFailed            the exporter could not produce a file at all
├── NotFound                no such model, version or endpoint
├── AlreadyExists           the target is there and would have been overwritten (a BadInput)
├── Overloaded              no room now; `retry_after_s` says when to come back
├── Unavailable             known but not serving: loading, draining, failed
├── DeadlineExceeded        nobody waits for the answer any more
├── Cancelled               the caller went away
├── Unsupported             understood, but not implemented here
└── EngineFailed            the engine raised while running a valid request

A broken invariant of ours is not in this tree: it is an assertion that names itself a bug.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tauten.spec.verdict import Judgement


class Code(StrEnum):
    """What kind of failure this is, for whoever has to answer: fronts map it to a status, the CLI to an exit code."""

    INVALID = "invalid"
    NOT_HELD = "not_held"
    UNDECIDED = "undecided"
    LACKING = "lacking"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    UNSUPPORTED = "unsupported"
    INTERNAL = "internal"


class TautenError(Exception):
    """Base of the tree. `message` says what was given and what is allowed, `fix` what to do next."""

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} (fix: {self.fix})" if self.fix else self.message


class BadInput(TautenError):
    """What was given cannot be used."""

    code = Code.INVALID


class BadUsage(BadInput):
    """A flag or an argument is wrong."""


class BadContract(BadInput):
    """The delivery contract has an unknown key, a wrong type, or bounds that contradict each other."""


class BadSource(BadInput):
    """The model that was handed over is missing, of no known kind, or unsafe to load."""


class BadModel(BadInput):
    """A model file is damaged or is not what its name says."""


class BadBundle(BadInput):
    """A bundle's files do not match its manifest."""


class BadRequest(BadInput):
    """An inference request has a wrong name, type, shape, length, bound or value."""


class _WithJudgement(TautenError):
    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.summary())
        self.judgement = judgement


class NotHeld(_WithJudgement):
    """A gate or a clause said no. `judgement` has every verdict."""

    code = Code.NOT_HELD


class Undecided(_WithJudgement):
    """Too little evidence to say yes or no. `judgement` has every verdict."""

    code = Code.UNDECIDED


class Lacking(TautenError):
    """This machine lacks something; the fix says how to get it."""

    code = Code.LACKING


class MissingExtra(Lacking):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, *, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the package {package!r}, which is not installed",
                         fix=f"pip install 'tauten[{extra}]'")  # fmt: skip
        self.package, self.extra = package, extra


class PortInUse(Lacking):
    """Somebody else listens on the port."""


class ExportFailed(TautenError):
    """The exporter could not produce a file at all; the message carries the end of its log."""

    code = Code.NOT_HELD


class NotFound(TautenError):
    """No such model, version or endpoint."""

    code = Code.NOT_FOUND


class AlreadyExists(BadInput):
    """The target is there and would have been overwritten."""

    code = Code.ALREADY_EXISTS


class Overloaded(TautenError):
    """No room now. `retry_after_s` says when to come back."""

    code = Code.OVERLOADED

    def __init__(self, message: str, *, retry_after_s: float = 1.0, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.retry_after_s = retry_after_s


class Unavailable(TautenError):
    """Known, but not serving now: loading, draining or failed."""

    code = Code.UNAVAILABLE


class DeadlineExceeded(TautenError):
    """The request's deadline passed before the engine could be spent on it."""

    code = Code.DEADLINE


class Cancelled(TautenError):
    """The caller went away."""

    code = Code.CANCELLED


class Unsupported(TautenError):
    """Understood, but not implemented here."""

    code = Code.UNSUPPORTED


class EngineFailed(TautenError):
    """The engine raised while running a valid request."""

    code = Code.INTERNAL
