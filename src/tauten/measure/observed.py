"""What was seen of a live server, as plain data. Clauses judge it, reports draw it; nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tauten.measure.traffic import Observations


@dataclass(frozen=True, slots=True)
class Moved:
    """A golden probe answered again: worst absolute difference from what it should be; NaN or a changed shape counts as inf."""

    at: float
    probe: str
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that clauses may look at. Times in seconds since the load began.

    ready       answers of the readiness probe
    resident    resident memory of the server, in MB (2^20 bytes), where it tells
    moved       golden probes; `against` says what they were compared with
    served      digests that the server says it serves: "bundle", "contract"; empty where it does not tell
    expected    the same, as the caller has them
    """

    load: Observations
    ready: tuple[tuple[float, bool], ...] = ()
    resident: tuple[tuple[float, float], ...] = ()
    moved: tuple[Moved, ...] = ()
    against: str = "its first answers"
    served: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
