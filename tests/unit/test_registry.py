"""Names, versions, leases; no engine in sight."""

import pytest

from tauten.serving.registry import Entry, Registry, order
from tauten.spec.errors import AlreadyExists, NotFound, Unavailable
from tauten.spec.lifecycle import Move, State


def live(registry: Registry[str], name: str, version: str) -> Entry[str]:
    entry = registry.stage(name, version)
    registry.move(entry, Move.WARM)
    registry.move(entry, Move.PROMOTE, served=f"{name} {version}")
    return entry


def test_versions_are_ordered_by_number() -> None:
    assert sorted(["10", "9", "2", "beta", "alpha", "1"], key=order) == ["alpha", "beta", "1", "2", "9", "10"]


def test_without_a_version_the_highest_live_one_is_meant() -> None:
    registry: Registry[str] = Registry()
    for version in ("9", "10", "2"):
        live(registry, "m", version)
    registry.stage("m", "11")
    assert registry.resolve("m")[1] == "m 10"
    assert registry.resolve("m", "2")[1] == "m 2"
    assert repr(registry) == "<Registry m/2 live, m/9 live, m/10 live, m/11 staged>"


def test_unknown_names_and_versions_say_what_is_known() -> None:
    registry: Registry[str] = Registry()
    with pytest.raises(NotFound, match="known are none"):
        registry.resolve("m")
    live(registry, "m", "1")
    with pytest.raises(NotFound, match=r"no model 'n' \(fix: known are m\)"):
        registry.resolve("n")
    with pytest.raises(NotFound, match=r"no version '2' \(fix: known are 1\)"):
        registry.resolve("m", "2")


def test_a_failed_version_says_why_and_leaves_the_live_one() -> None:
    registry: Registry[str] = Registry()
    live(registry, "m", "1")
    second = registry.stage("m", "2")
    registry.move(second, Move.FAIL, reason="'model.onnx' has 3 bytes")
    assert registry.resolve("m")[0].version == "1"
    with pytest.raises(Unavailable, match=r"version 2 is failed: 'model\.onnx' has 3 bytes"):
        registry.resolve("m", "2")
    assert registry.stage("m", "2").state is State.STAGED  # it may be tried again


def test_a_version_is_given_once() -> None:
    registry: Registry[str] = Registry()
    live(registry, "m", "1")
    with pytest.raises(AlreadyExists, match="'m' version 1 is already live"):
        registry.stage("m", "1")


def test_leases_are_counted_and_end_with_the_request() -> None:
    registry: Registry[str] = Registry()
    entry = live(registry, "m", "1")
    one, two = entry.lease(), entry.lease()
    one.release()
    one.release()
    assert repr(entry) == "<Entry m/1 live leases=1>"
    two.release()
    assert entry.leases == 0


def test_closing_gives_up_what_served() -> None:
    registry: Registry[str] = Registry()
    entry = live(registry, "m", "1")
    registry.move(entry, Move.DRAIN)
    assert registry.find("m").served == "m 1"
    registry.move(entry, Move.CLOSE)
    assert registry.find("m").served is None
    with pytest.raises(Unavailable, match="is closed"):
        registry.resolve("m")


def test_a_move_that_the_table_does_not_have_is_a_bug() -> None:
    registry: Registry[str] = Registry()
    with pytest.raises(AssertionError, match="bug: a staged version cannot promote"):
        registry.move(registry.stage("m", "1"), Move.PROMOTE)
