"""Whatever waits: limits are kept, nothing is lost or run twice, nobody is passed over for ever."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tauten.serving.batching import Policy, decide


@dataclass(eq=False)
class Item:
    rows: int
    key: int | None
    deadline: float | None = None


items = st.lists(st.builds(Item, st.integers(1, 12), st.sampled_from([None, 1, 2, 3])), max_size=40)


@given(waiting=items, late=st.lists(st.builds(Item, st.integers(1, 12), st.just(1)), max_size=40),
       max_rows=st.integers(1, 10), instances=st.integers(1, 3))  # fmt: skip
def test_every_request_starts_once_within_as_many_runs_as_were_ahead_of_it(
    waiting: list[Item], late: list[Item], max_rows: int, instances: int
) -> None:
    """A stream of newcomers with one key tries to push in before everybody else."""
    at_first, left, done = list(waiting), list(waiting), list[Item]()
    for run in range(len(waiting)):
        if not any(w in left for w in at_first):
            break
        batch = decide(0.0, left, Policy(max_rows, instances)).start
        assert batch[0] is left[0], "the oldest starts"
        assert len({id(b.key) for b in batch}) == 1
        assert len(batch) == 1 or (batch[0].key is not None and sum(b.rows for b in batch) <= max_rows)
        assert batch == tuple(sorted(batch, key=left.index)), "in order of arrival"
        done += batch
        left = [w for w in left if w not in batch] + late[run : run + 1]
        assert all(w in done for w in at_first[: run + 1])
    assert len({id(d) for d in done}) == len(done)


@given(waiting=st.lists(st.builds(Item, st.integers(1, 12), st.just(1), st.floats(0, 10)), max_size=30), now=st.floats(0, 10))
def test_what_is_late_is_never_started(waiting: list[Item], now: float) -> None:
    decision = decide(now, waiting, Policy(1000))
    assert all(w.deadline is not None and w.deadline > now for w in decision.start)
    assert all(w.deadline is not None and w.deadline <= now for w in decision.expired)
    assert len(decision.start) + len(decision.expired) == len(waiting)
