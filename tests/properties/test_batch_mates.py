"""Answers never depend on batch mates, padding or bucket: a real model through the real service, against numpy and itself."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauten import testing
from tauten.serving.service import Service
from tauten.spec.engine import EngineSettings, ServingSettings
from tauten.spec.infer import InferReply, InferRequest

ids = st.lists(st.integers(0, testing.WORDS - 1), min_size=1, max_size=testing.LONGEST)
requests = st.lists(st.lists(ids, min_size=1, max_size=5), min_size=1, max_size=12)

SERVED = {
    "buckets": ServingSettings(batch=8, buckets={"seq": (4, 8, 16)}),
    "one bucket, two instances": ServingSettings(batch=3, instances=2, buckets={"seq": (16,)}),
    "all graph rewrites off": ServingSettings(
        batch=32, buckets={"seq": (2, 16)}, session=EngineSettings(graph_level="disabled")
    ),
    "never padded": ServingSettings(batch=8, pad=False, buckets={"seq": (4, 8, 16)}),
    "always alone": ServingSettings(batch=1, buckets={"seq": (4, 8, 16)}),
}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture(scope="module", params=list(SERVED.values()), ids=list(SERVED))
def service(
    request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    bundle = testing.tiny_bundle(Path(tmp_path_factory.mktemp("bundles")), settings=request.param)
    context = testing.service(bundle)
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


def together(service: Service, loop: asyncio.AbstractEventLoop, asked: Sequence[list[list[int]]]) -> list[InferReply]:
    async def all_at_once() -> list[InferReply]:
        return await asyncio.gather(*(service.infer(InferRequest("tiny", testing.tiny_inputs(*rows))) for rows in asked))

    return loop.run_until_complete(all_at_once())


@given(asked=requests)
@settings(max_examples=60, deadline=None)
def test_an_answer_is_the_same_alone_in_company_and_padded(
    service: Service, loop: asyncio.AbstractEventLoop, asked: list[list[list[int]]]
) -> None:
    for rows, reply in zip(asked, together(service, loop, asked), strict=True):
        inputs = testing.tiny_inputs(*rows)
        alone = together(service, loop, [rows])[0]
        for name, want in testing.tiny_answer(inputs).items():
            assert reply.outputs[name].shape == want.shape
            np.testing.assert_allclose(reply.outputs[name], want, atol=1e-5, rtol=1e-4)
            np.testing.assert_allclose(reply.outputs[name], alone.outputs[name], atol=1e-6)


@given(asked=requests, poisoned=st.integers(0, 11))
@settings(max_examples=30, deadline=None)
def test_a_poisoned_neighbour_changes_nothing(
    service: Service, loop: asyncio.AbstractEventLoop, asked: list[list[list[int]]], poisoned: int
) -> None:
    """An id outside the table makes the engine fail the whole batch."""
    place = poisoned % len(asked)
    asked[place] = [[testing.WORDS + 1]]

    async def all_at_once() -> list[InferReply | BaseException]:
        calls = (service.infer(InferRequest("tiny", testing.tiny_inputs(*rows))) for rows in asked)
        return await asyncio.gather(*calls, return_exceptions=True)

    for i, reply in enumerate(loop.run_until_complete(all_at_once())):
        if i == place:
            assert "indices element out of data bounds" in str(reply)
            continue
        assert isinstance(reply, InferReply)
        want = testing.tiny_answer(testing.tiny_inputs(*asked[i]))
        np.testing.assert_allclose(reply.outputs["embedding"], want["embedding"], atol=1e-5, rtol=1e-4)
