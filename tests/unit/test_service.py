"""The way of a request through a real service and its real threads; only the engine is an echo that can be held at a gate."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tauten import testing
from tauten.serving.service import Service
from tauten.serving.settings import QueueLimits
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import Port, ServingSettings, Tensors
from tauten.spec.errors import (
    BadRequest,
    Code,
    DeadlineExceeded,
    EngineFailed,
    NotFound,
    Overloaded,
    TautenError,
    Unavailable,
    Unsupported,
)
from tauten.spec.events import BatchRan, Event, RequestRefused, WorkerChanged
from tauten.spec.infer import InferReply, InferRequest

PORT_IN, PORT_OUT = Port("x", "int64", ("batch", "n")), Port("y", "int64", ("batch", "n"))
POISON = 666


def contract(most: int = 32, **x: Any) -> Contract:
    return Contract.of(
        {
            "contract": 1,
            "name": "echo",
            "inputs": {"x": {"dtype": "int64", "shape": ["batch", "n"], "range": [0, 1000], **x}},
            "outputs": {"y": {"dtype": "int64", "shape": ["batch", "n"]}},
            "axes": {"batch": {"min": 1, "max": most}, "n": {"min": 1, "max": 4}},
        }
    )


def bundle(tmp: Path, *, most: int = 32, variant: dict[str, Any] | None = None, x: Any = None, **settings: Any) -> Bundle:
    return testing.seal_bundle(
        tmp / "echo",
        contract(most, **(x or {})),
        empty_file,
        ServingSettings(engine="echo", **{"batch": 8, **settings}),
        variant=variant,
    )


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def request(*rows: int, width: int = 1, **more: Any) -> InferRequest:
    return InferRequest("echo", {"x": np.array([[r] * width for r in rows])}, **more)


def answers(reply: InferReply) -> list[int]:
    return [int(r[0]) for r in reply.outputs["y"]]


class Scene:
    """A service with its echo engine, the events it announced, and its clock."""

    def __init__(self, service: Service, engine: testing.Echo, events: list[Event], clock: testing.Clock) -> None:
        self.service, self.engine, self.events, self.clock = service, engine, events, clock

    def ask(self, *rows: int, **more: Any) -> "asyncio.Task[InferReply]":
        return asyncio.ensure_future(self.service.infer(request(*rows, **more)))

    async def occupy(self) -> "asyncio.Task[InferReply]":
        """Puts one request at the gate, so that what follows has to wait."""
        self.engine.hold()
        first = self.ask(0)
        await asyncio.to_thread(self.engine.wait_for_run)
        return first

    def ran(self) -> list[list[int]]:
        """The rows of every run so far."""
        return [[int(r[0]) for r in b["x"]] for b in self.engine.batches]

    def refused(self) -> list[Code]:
        return [e.code for e in self.events if isinstance(e, RequestRefused)]


Play = Callable[[Scene], Awaitable[None]]


def play(what: Bundle, act: Play, fail: Callable[[Tensors], None] = lambda _: None, **options: Any) -> None:
    """Runs one act on a fresh service, with what the warm-up did forgotten."""

    async def whole() -> None:
        engine, events, clock = testing.Echo([PORT_IN], [PORT_OUT]), list[Event](), testing.Clock()
        async with testing.service(what, engine=engine, sink=events.append, clock=clock, **options) as service:
            while engine.batches:
                engine.batches.pop()
                engine.wait_for_run()
            events.clear()
            engine.fail = fail
            await act(Scene(service, engine, events, clock))
        assert engine.opened == engine.closed

    asyncio.run(whole())


def poisoned(inputs: Tensors) -> None:
    if (inputs["x"] == POISON).any():
        raise EngineFailed("the engine's own words")


def test_an_idle_instance_starts_at_once_and_the_rest_gathers_meanwhile(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        others = [scene.ask(i) for i in range(1, 7)]
        await asyncio.sleep(0)
        assert scene.ran() == [[0]]
        scene.engine.release()
        assert [answers(r) for r in await asyncio.gather(first, *others)] == [[i] for i in range(7)]
        assert scene.ran() == [[0], [1, 2, 3, 4, 5, 6]]
        ran = [e for e in scene.events if isinstance(e, BatchRan)]
        assert [(e.rows, len(e.queue_s), e.failed) for e in ran] == [(1, 1, False), (6, 6, False)]

    play(bundle(tmp_path), act)


def test_limits_count_samples_and_a_larger_request_is_split_and_joined(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        sizes = (5, 5, 3, 8, 9)
        asked = [scene.ask(*range(10 * i, 10 * i + n)) for i, n in enumerate(sizes, 1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        scene.engine.release()
        for i, (n, reply) in enumerate(zip(sizes, await asyncio.gather(*asked), strict=True), 1):
            assert answers(reply) == list(range(10 * i, 10 * i + n))
        assert max(map(len, scene.ran())) <= 8
        assert [len(r) for r in scene.ran()] == [1, 8, 6, 8, 8], "5+3, then 5 with the one left of 9, 8, 8"
        assert answers(await first) == [0]

    play(bundle(tmp_path), act)


def test_a_batch_of_one_serves_every_request_alone(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.occupy()
        asked = [scene.ask(i) for i in (1, 2, 3)]
        await asyncio.sleep(0)
        scene.engine.release()
        await asyncio.gather(*asked)
        assert scene.ran() == [[0], [1], [2], [3]]

    play(bundle(tmp_path, batch=1), act)


def test_a_model_whose_rows_depend_on_each_other_keeps_a_clients_rows_together_and_others_out(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.occupy()
        asked = [scene.ask(1, 2, 3), scene.ask(4)]
        await asyncio.sleep(0)
        scene.engine.release()
        await asyncio.gather(*asked)
        assert scene.ran() == [[0], [1, 2, 3], [4]]

    play(bundle(tmp_path, batch=1, variant={"batch_independent": False}), act)


def test_a_poisoned_request_fails_alone(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.occupy()
        asked = [scene.ask(i) for i in (1, 2, 3, POISON, 5, 6, 7, 8)]
        await asyncio.sleep(0)
        scene.engine.release()
        replies = await asyncio.gather(*asked, return_exceptions=True)
        good = [answers(r) for r in replies if isinstance(r, InferReply)]
        bad = [r for r in replies if not isinstance(r, InferReply)]
        assert good == [[1], [2], [3], [5], [6], [7], [8]]
        assert [str(b) for b in bad] == ["the engine's own words"]
        assert len(scene.ran()) == 1 + 1 + 8, "one run together, then each alone, once"
        assert scene.service.ready()
        assert answers(await scene.ask(9)) == [9]

    play(bundle(tmp_path), act, poisoned)


def test_a_bad_request_is_refused_before_it_is_queued(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.occupy()
        neighbour = scene.ask(1)
        for bad in (request(1, width=5), request(-1), request(*range(33)), InferRequest("echo", {}),
                    request(1, outputs=("z",)), InferRequest("echo", {"x": np.array([[1.0]])})):  # fmt: skip
            with pytest.raises(BadRequest):
                await scene.service.infer(bad)
        scene.engine.release()
        assert answers(await neighbour) == [1]
        assert scene.ran() == [[0], [1]]
        assert scene.refused() == [Code.INVALID] * 6

    play(bundle(tmp_path), act)


def test_a_full_queue_refuses_at_once_and_recovers(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        asked = [scene.ask(i) for i in range(1, 20)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        refused = [t for t in done if isinstance(t.exception(), Overloaded)]
        assert len(refused) == len(done) == 19 - 15
        scene.engine.release()
        replies = await asyncio.gather(first, *(t for t in asked if t not in done))
        assert [answers(r)[0] for r in replies] == list(range(16))
        assert answers(await scene.ask(*range(16))) == list(range(16))
        with pytest.raises(Overloaded, match="17 rows do not fit: 0 of 16"):
            await scene.ask(*range(17))

    play(bundle(tmp_path), act, queue=QueueLimits(rows=16))


def test_who_goes_away_frees_the_place_and_is_never_run(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        gone = [scene.ask(i) for i in range(1, 16)] + [scene.ask(*range(20, 37))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await asyncio.sleep(0)
        stays = scene.ask(50)
        await asyncio.sleep(0)
        assert repr(scene.service).startswith("<Service open 2 in flight")
        scene.engine.release()
        assert [answers(r) for r in await asyncio.gather(first, stays)] == [[0], [50]]
        assert scene.ran() == [[0], [50]]
        assert scene.refused() == [Code.CANCELLED] * 16

    play(bundle(tmp_path), act, queue=QueueLimits(rows=33))


def test_a_missed_deadline_costs_no_run(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        soon, later = scene.ask(1, deadline=scene.clock.now + 100), scene.ask(2, deadline=scene.clock.now + 300)
        await asyncio.sleep(0)
        scene.clock.jump(200)
        scene.engine.release()
        with pytest.raises(DeadlineExceeded, match="passed while the request waited"):
            await soon
        assert [answers(r) for r in await asyncio.gather(first, later)] == [[0], [2]]
        with pytest.raises(DeadlineExceeded, match="had passed when the request arrived"):
            await scene.ask(3, deadline=scene.clock.now)
        assert scene.ran() == [[0], [2]]

    play(bundle(tmp_path), act)


def test_a_deadline_is_answered_when_it_passes_even_while_the_engine_is_busy(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.occupy()
        with pytest.raises(DeadlineExceeded):
            await scene.ask(1, deadline=scene.clock.now + 0.001)
        assert scene.ran() == [[0]]

    play(bundle(tmp_path), act)


def test_a_crashed_worker_is_started_again_and_meanwhile_the_server_is_not_ready(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        def crash(inputs: Tensors) -> None:
            if (inputs["x"] == POISON).any():
                scene.engine.hold()  # the warm-up of the new session waits there
                raise ZeroDivisionError("not an error of an engine")

        scene.engine.fail = crash
        with pytest.raises(EngineFailed, match="worker crashed while running this batch: ZeroDivisionError"):
            await scene.ask(POISON)
        assert (scene.service.ready(), scene.service.model_ready("echo"), scene.service.live()) == (False, False, True)
        waits = scene.ask(1)
        await asyncio.sleep(0)
        scene.engine.release()
        assert answers(await waits) == [1]
        assert scene.service.ready()
        changes = [(e.healthy, e.crashes) for e in scene.events if isinstance(e, WorkerChanged)]
        assert changes == [(False, 1), (True, 1)]
        assert scene.engine.opened == 2

    play(bundle(tmp_path), act)


def test_a_worker_that_cannot_start_again_takes_its_version_down_with_the_reason(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        def crash(_: Tensors) -> None:
            raise ZeroDivisionError("for good")

        first = await scene.occupy()
        scene.engine.fail = crash
        waits = scene.ask(1)
        await asyncio.sleep(0)
        scene.engine.release()
        with pytest.raises(Unavailable, match="not answered: ZeroDivisionError: for good; a new session failed"):
            await waits
        with pytest.raises(EngineFailed, match="worker crashed"):
            await first
        assert not scene.service.ready()
        assert scene.service.index()[0]["state"] == "UNAVAILABLE"
        assert "for good" in scene.service.index()[0]["reason"]
        with pytest.raises(Unavailable, match="version 1 is failed: ZeroDivisionError: for good"):
            await scene.ask(2)

    play(bundle(tmp_path), act)


@pytest.mark.parametrize("wrong", [slice(0, 0), slice(1, None)], ids=["none", "one less"])
def test_a_model_that_gives_other_rows_than_it_got_answers_nobody(tmp_path: Path, wrong: slice) -> None:
    async def act(scene: Scene) -> None:
        run = scene.engine.run
        scene.engine.run = lambda inputs: {"y": run(inputs)["y"][wrong]}  # type: ignore[method-assign]
        with pytest.raises(EngineFailed, match=r"output 'y' came with shape \[\d, 1\] where \[2, 1\] was due"):
            await scene.ask(1, 2)

    play(bundle(tmp_path), act)


def test_left_out_optional_inputs_get_their_default(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(BadRequest, match="no other input has its axis 'batch'"):
            await scene.service.infer(InferRequest("echo", {}))

    play(bundle(tmp_path, x={"optional": True, "default": 7}), act)


def test_draining_refuses_new_requests_and_answers_those_in_flight(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        queued = scene.ask(1)
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(scene.service.drain(60))
        await asyncio.sleep(0)
        assert not scene.service.ready()
        assert scene.service.live()
        with pytest.raises(Unavailable, match="shutting down"):
            await scene.ask(2)
        scene.engine.release()
        assert await draining
        assert [answers(r) for r in await asyncio.gather(first, queued)] == [[0], [1]]

    play(bundle(tmp_path), act)


def test_a_drain_that_takes_too_long_gives_up_and_the_close_answers_who_waits(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        queued = scene.ask(1)
        await asyncio.sleep(0)
        assert not await scene.service.drain(0.0)
        closing = asyncio.ensure_future(scene.service.close())
        with pytest.raises(Unavailable, match="the version was closed"):
            await queued
        scene.engine.release()
        await closing
        assert answers(await first) == [0]
        assert not scene.service.live()
        assert scene.ran() == [[0]]

    play(bundle(tmp_path), act)


def test_instances_run_beside_each_other(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first = await scene.occupy()
        second = scene.ask(1)
        await asyncio.to_thread(scene.engine.wait_for_run)
        assert scene.ran() == [[0], [1]]
        third = [scene.ask(i) for i in (2, 3, 4)]
        await asyncio.sleep(0)
        scene.engine.release()
        await asyncio.gather(first, second, *third)
        assert sorted(map(len, scene.ran())) == [1, 1, 1, 2], "what waits is shared"

    play(bundle(tmp_path, instances=2), act)


def test_what_is_there_is_told(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        service = scene.service
        assert service.model_ready("echo")
        assert service.server_metadata()["name"] == "tauten"
        assert service.model_metadata("echo") == {
            "name": "echo", "versions": ["1"], "platform": "echo_onnx",
            "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}],
            "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1, -1]}],
        }  # fmt: skip
        assert service.index() == [{"name": "echo", "version": "1", "state": "READY"}]
        assert service.contract("echo", "1").name == "echo"
        assert list(service.signature("echo").inputs) == ["x"]
        assert repr(service) == "<Service open 0 in flight <Registry echo/1 live>>"
        reply = await service.infer(request(1, id="7", outputs=("y",)))
        assert (reply.model, reply.version, reply.id, list(reply.outputs)) == ("echo", "1", "7", ["y"])
        with pytest.raises(Unsupported, match="no processor for natural input"):
            await service.predict("echo", "", "text/plain", b"a")
        unknown: list[Callable[[], object]] = [
            lambda: service.model_ready("nope"), lambda: service.model_metadata("nope"), lambda: service.contract("echo", "2"),
        ]  # fmt: skip
        for ask in unknown:
            with pytest.raises(NotFound):
                ask()

    play(bundle(tmp_path), act)


def test_names_that_clients_invent_are_announced_without_the_name(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(TautenError):
            await scene.service.infer(InferRequest("invented", {}))
        assert scene.events == [RequestRefused("", "", Code.NOT_FOUND)]

    play(bundle(tmp_path), act)
