"""Names, versions, leases: what may be asked for, and what state it is in. Pure: it opens and closes nothing.

Versions are ordered by number; one that is not a number comes before all that are. Without a version, the highest live one
is meant.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tauten.spec.errors import AlreadyExists, NotFound, Unavailable
from tauten.spec.infer import Lease
from tauten.spec.lifecycle import Move, State, advance

T = TypeVar("T")


class Entry(Generic[T]):
    """One version of a model. `served` is there from the promotion until the close; `leases` counts requests in flight."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.state, self.reason, self.leases = State.STAGED, "", 0
        self.served: T | None = None

    def __repr__(self) -> str:
        return f"<Entry {self.name}/{self.version} {self.state} leases={self.leases}>"

    def lease(self) -> Lease:
        """Held by a request in flight."""
        self.leases += 1
        return Lease(self._release)

    def _release(self) -> None:
        self.leases -= 1


class Registry(Generic[T]):
    def __init__(self) -> None:
        self._models: dict[str, dict[str, Entry[T]]] = {}

    def __repr__(self) -> str:
        return f"<Registry {', '.join(f'{e.name}/{e.version} {e.state}' for e in self.entries()) or 'empty'}>"

    def stage(self, name: str, version: str) -> Entry[T]:
        """A new entry. Raises AlreadyExists unless the one that is there has failed or is closed."""
        there = self._models.get(name, {}).get(version)
        if there is not None and there.state not in {State.FAILED, State.CLOSED}:
            raise AlreadyExists(f"{name!r} version {version} is already {there.state}", fix="give each version once")
        entry: Entry[T] = Entry(name, version)
        self._models.setdefault(name, {})[version] = entry
        return entry

    def move(self, entry: Entry[T], move: Move, *, reason: str = "", served: T | None = None) -> State:
        """Applies the transition table. `served` comes with the promotion; closing or failing gives it up."""
        entry.state, entry.reason = advance(entry.state, move), reason
        if entry.state in {State.CLOSED, State.FAILED}:
            entry.served = None
        elif served is not None:
            entry.served = served
        return entry.state

    def entries(self) -> list[Entry[T]]:
        """All, by name, then by version."""
        return [v[k] for _, v in sorted(self._models.items()) for k in sorted(v, key=order)]

    def versions(self, name: str) -> list[Entry[T]]:
        """All of one name, the highest version last. Raises NotFound."""
        if name not in self._models:
            raise NotFound(f"there is no model {name!r}", fix=f"known are {', '.join(sorted(self._models)) or 'none'}")
        found = self._models[name]
        return [found[k] for k in sorted(found, key=order)]

    def find(self, name: str, version: str = "") -> Entry[T]:
        """An entry in whatever state: the one asked for, or the highest live, or the highest. Raises NotFound."""
        entries = self.versions(name)
        if version:
            for entry in entries:
                if entry.version == version:
                    return entry
            raise NotFound(
                f"model {name!r} has no version {version!r}", fix=f"known are {', '.join(e.version for e in entries)}"
            )
        live = [e for e in entries if e.state is State.LIVE]
        return (live or entries)[-1]

    def resolve(self, name: str, version: str = "") -> tuple[Entry[T], T]:
        """A live entry and what serves it. Raises NotFound or Unavailable."""
        entry = self.find(name, version)
        if entry.state is not State.LIVE or entry.served is None:
            raise Unavailable(f"{name!r} version {entry.version} is {entry.state}{': ' if entry.reason else ''}{entry.reason}",
                              fix="ask the repository index for a version that is ready")  # fmt: skip
        return entry, entry.served


def order(version: str) -> tuple[int, int, str]:
    """Sorts versions by number."""
    return (1, int(version), "") if version.isascii() and version.isdecimal() else (0, 0, version)
