"""The life of a served version, as one table. A move that is not in it is a bug of ours and raises here."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    STAGED = "staged"
    WARMING = "warming"
    SHADOW = "shadow"
    LIVE = "live"
    DRAINING = "draining"
    CLOSED = "closed"
    FAILED = "failed"


class Move(StrEnum):
    WARM = "warm"
    OBSERVE = "observe"
    PROMOTE = "promote"
    DRAIN = "drain"
    CLOSE = "close"
    FAIL = "fail"


TRANSITIONS: dict[tuple[State, Move], State] = {
    (State.STAGED, Move.WARM): State.WARMING,
    (State.WARMING, Move.OBSERVE): State.SHADOW,
    (State.WARMING, Move.PROMOTE): State.LIVE,
    (State.SHADOW, Move.PROMOTE): State.LIVE,
    (State.SHADOW, Move.DRAIN): State.DRAINING,
    (State.LIVE, Move.DRAIN): State.DRAINING,
    (State.DRAINING, Move.PROMOTE): State.LIVE,
    (State.DRAINING, Move.CLOSE): State.CLOSED,
    (State.STAGED, Move.FAIL): State.FAILED,
    (State.WARMING, Move.FAIL): State.FAILED,
    (State.SHADOW, Move.FAIL): State.FAILED,
    (State.LIVE, Move.FAIL): State.FAILED,
    (State.STAGED, Move.CLOSE): State.CLOSED,
    (State.FAILED, Move.CLOSE): State.CLOSED,
    (State.FAILED, Move.WARM): State.WARMING,
}


def advance(state: State, move: Move) -> State:
    """The state after a move. Raises AssertionError for a move that the table does not have."""
    after = TRANSITIONS.get((state, move))
    if after is None:
        raise AssertionError(f"bug: a {state} version cannot {move}")
    return after
