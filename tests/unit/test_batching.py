"""Which requests start together: pure, so time is an argument."""

from dataclasses import dataclass, replace

from tauten.serving.batching import REACH, Policy, decide, split


@dataclass(frozen=True)
class Item:
    name: str
    rows: int = 1
    key: object = "k"
    deadline: float | None = None


def started(items: list[Item], max_rows: int = 8, now: float = 0.0) -> list[str]:
    return [i.name for i in decide(now, items, Policy(max_rows)).start]


def drained(items: list[Item], max_rows: int = 8) -> list[list[str]]:
    """Batches in the order they start until nothing waits."""
    batches = []
    while items:
        batch = decide(0.0, items, Policy(max_rows)).start
        assert batch, "something waits, yet nothing starts"
        batches.append([i.name for i in batch])
        items = [i for i in items if i not in batch]
    return batches


def test_nothing_waits_nothing_starts() -> None:
    decision = decide(0.0, list[Item](), Policy(8))
    assert (decision.start, decision.expired) == ((), ())


def test_all_of_a_bucket_start_together_in_order_of_arrival() -> None:
    assert started([Item("a"), Item("b"), Item("c")]) == ["a", "b", "c"]


def test_the_limit_counts_rows_not_requests() -> None:
    items = [Item("a", 5), Item("b", 5), Item("c", 3), Item("d", 8), Item("e", 9)]
    assert drained(items) == [["a", "c"], ["b"], ["d"], ["e"]]


def test_a_limit_of_one_runs_each_alone() -> None:
    assert drained([Item("a"), Item("b")], max_rows=1) == [["a"], ["b"]]


def test_instances_share_what_waits() -> None:
    def sizes(count: int, instances: int) -> int:
        return len(decide(0.0, [Item(str(i)) for i in range(count)], Policy(8, instances)).start)

    assert [sizes(n, 2) for n in (1, 2, 3, 8, 15, 16, 40)] == [1, 1, 2, 4, 8, 8, 8]
    assert sizes(9, 4) == 3
    assert len(decide(0.0, [Item("large", 7), Item("b", 2)], Policy(8, 2)).start) == 1


def test_the_oldest_decides_the_bucket() -> None:
    items = [Item("long", key=64), Item("short 1", key=32), Item("long too", key=64), Item("short 2", key=32)]
    assert drained(items) == [["long", "long too"], ["short 1", "short 2"]]


def test_without_a_key_a_request_goes_alone() -> None:
    assert drained([Item("a", key=None), Item("b", key=None)]) == [["a"], ["b"]]


def test_a_steady_stream_of_mates_never_starves_another_bucket() -> None:
    """However many short ones keep coming, the long one starts once those ahead of it have."""
    waiting = [Item("short 0", key=32), Item("long", key=64)]
    for turn in range(3):
        batch = decide(0.0, waiting, Policy(8)).start
        if batch[0].name == "long":
            break
        waiting = [i for i in waiting if i not in batch] + [Item(f"short {turn + 1}.{i}", key=32) for i in range(20)]
    assert (turn, batch[0].name) == (1, "long")


def test_a_missed_deadline_is_never_run() -> None:
    items = [Item("late", deadline=9.0), Item("just", deadline=10.0), Item("in time", deadline=10.1), Item("never")]
    decision = decide(10.0, items, Policy(8))
    assert [i.name for i in decision.expired] == ["late", "just"]
    assert [i.name for i in decision.start] == ["in time", "never"]


def test_a_full_batch_looks_no_further() -> None:
    looked = 0

    def waiting() -> "list[Item]":
        return [Item(str(i)) for i in range(1000)]

    class Counting(list[Item]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            for item in list.__iter__(self):
                looked += 1
                yield item

    assert len(decide(0.0, Counting(waiting()), Policy(8)).start) == 8
    assert looked == 8
    looked = 0
    assert len(decide(0.0, Counting([Item("odd", key="o"), *waiting()]), Policy(8)).start) == 1
    assert looked == REACH


def test_deciding_is_the_same_for_the_same_arguments() -> None:
    items = [Item(str(i), rows=i % 5 + 1, key=i % 2) for i in range(20)]
    assert decide(0.0, items, Policy(8)) == decide(0.0, [replace(i) for i in items], Policy(8))


def test_split_covers_every_row_once() -> None:
    assert list(split(9, 4)) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert list(split(8, 8)) == [slice(0, 8)]
