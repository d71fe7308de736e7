"""A lease or a refusal, by rows and by bytes."""

import pytest

from tauten.serving.admission import LATEST_S, SOONEST_S, Admission
from tauten.serving.settings import QueueLimits, ServerSettings
from tauten.spec.errors import BadUsage, Overloaded


def test_rows_are_counted_and_given_back() -> None:
    admission = Admission(QueueLimits(rows=4, bytes=100))
    first, second = admission.enter(3, 10), admission.enter(1, 10)
    assert repr(admission) == "<Admission 2 requests, 4 rows, 20 bytes>"
    with pytest.raises(Overloaded, match="1 rows do not fit: 4 of 4 are taken"):
        admission.enter(1, 10)
    first.release()
    first.release()
    assert admission.enter(3, 10).held
    second.release()
    assert repr(admission) == "<Admission 1 requests, 3 rows, 10 bytes>"


def test_bytes_are_counted_too() -> None:
    admission = Admission(QueueLimits(rows=100, bytes=100))
    admission.enter(1, 60)
    with pytest.raises(Overloaded, match="41 bytes do not fit: 60 of 100"):
        admission.enter(1, 41)
    assert admission.enter(1, 40).held


def test_a_lease_leaves_with_its_block_whatever_happens() -> None:
    admission = Admission(QueueLimits(rows=1, bytes=1))
    with pytest.raises(ZeroDivisionError), admission.enter(1, 1):
        raise ZeroDivisionError
    assert (admission.requests, admission.rows, admission.bytes) == (0, 0, 0)


@pytest.mark.parametrize(("pace", "told"), [(None, 1.0), (100.0, 1.0), (1.0, LATEST_S), (1e6, SOONEST_S)])
def test_who_is_refused_is_told_when_to_come_back(pace: float | None, told: float) -> None:
    """Half of 200 rows at 100 rows/s is a second; never sooner or later than the bounds."""
    admission = Admission(QueueLimits(rows=200))
    admission.enter(200, 1)
    with pytest.raises(Overloaded) as caught:
        admission.enter(1, 1, pace)
    assert caught.value.retry_after_s == told


@pytest.mark.parametrize("limits", [{"rows": 0}, {"bytes": 0}, {"rows": -1}])
def test_limits_that_leave_no_room_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(BadUsage, match="leave no room"):
        QueueLimits(**limits)


def test_settings_are_checked_when_they_are_made() -> None:
    from pathlib import Path

    some = (Path("bundle"),)
    with pytest.raises(BadUsage, match="nothing to serve"):
        ServerSettings()
    with pytest.raises(BadUsage, match="--http-port 70000 is not a port"):
        ServerSettings(bundles=some, http_port=70000)
    with pytest.raises(BadUsage, match="--metrics-port -2"):
        ServerSettings(bundles=some, metrics_port=-2)
    with pytest.raises(BadUsage, match="--http-max-input-size 0"):
        ServerSettings(bundles=some, max_input_bytes=0)
    with pytest.raises(BadUsage, match="--exit-timeout-secs nan"):
        ServerSettings(bundles=some, exit_timeout_s=float("nan"))
    assert ServerSettings(bundles=some, metrics_port=-1).http_port == 8000
