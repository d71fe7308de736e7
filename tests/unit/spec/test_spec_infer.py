"""A lease is given back exactly once, whatever happens."""

import pytest

from tauten.spec.infer import InferReply, InferRequest, Lease


def test_a_lease_is_given_back_once() -> None:
    given: list[str] = []
    lease = Lease(lambda: given.append("back"))
    assert lease.held
    lease.release()
    lease.release()
    assert given == ["back"]
    assert not lease.held


def test_leaving_the_block_gives_it_back() -> None:
    given: list[str] = []
    with Lease(lambda: given.append("back")) as lease:
        assert lease.held
        assert not given
    assert given == ["back"]


def test_an_exception_gives_it_back_and_goes_on() -> None:
    given: list[str] = []

    def work() -> None:
        with Lease(lambda: given.append("back")):
            raise ValueError("as it was")

    with pytest.raises(ValueError, match="as it was"):
        work()
    assert given == ["back"]


def test_a_failing_release_is_not_tried_again() -> None:
    def fail() -> None:
        raise OSError("gone")

    lease = Lease(fail)
    with pytest.raises(OSError, match="gone"):
        lease.release()
    assert not lease.held
    lease.release()


def test_a_request_asks_for_everything_unless_told() -> None:
    request = InferRequest("m", {})
    assert (request.version, request.outputs, request.deadline) == ("", (), None)
    assert request.parameters is not InferRequest("m", {}).parameters
    assert InferReply("m", "3", {}).version == "3"
