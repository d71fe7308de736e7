"""The life of a served version: every move that is in the table, and none that is not."""

from itertools import product

import pytest

from tauten.spec.lifecycle import TRANSITIONS, Move, State, advance


@pytest.mark.parametrize(("state", "move"), list(product(State, Move)), ids=str)
def test_a_move_is_in_the_table_or_a_bug(state: State, move: Move) -> None:
    if (state, move) in TRANSITIONS:
        assert advance(state, move) is TRANSITIONS[state, move]
    else:
        with pytest.raises(AssertionError, match=f"bug: a {state} version cannot {move}"):
            advance(state, move)


def reachable(start: State) -> set[State]:
    found = {start}
    while more := {TRANSITIONS[s, m] for s, m in TRANSITIONS if s in found} - found:
        found |= more
    return found


def test_every_state_can_be_reached_and_can_end() -> None:
    assert reachable(State.STAGED) == set(State)
    assert all(State.CLOSED in reachable(state) for state in State)


def test_closed_is_the_end() -> None:
    assert not [move for state, move in TRANSITIONS if state is State.CLOSED]


def test_only_a_warmed_version_goes_live() -> None:
    before = {state for (state, _), after in TRANSITIONS.items() if after is State.LIVE}
    assert before == {State.WARMING, State.SHADOW, State.DRAINING}
    assert State.LIVE not in {TRANSITIONS.get((State.FAILED, m)) for m in Move}
