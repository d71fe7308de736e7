"""The unmodified tritonclient against the HTTP front: it cannot tell the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture
def client(edge: Any) -> Iterator[Any]:
    client = triton.InferenceServerClient(edge.front.url.removeprefix("http://"))
    yield client
    client.close()


def tensor(array: np.ndarray[Any, Any], datatype: str, *, name: str = "x", binary: bool = True) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


X = np.array([[1.5, -2.0, 0.0]], np.float32)


def test_health_and_metadata(client: Any, edge: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("float32")
    assert client.is_model_ready("float32", "1")
    assert not client.is_model_ready("unknown")
    assert client.get_server_metadata()["name"] == "echo"
    assert client.get_model_metadata("float32", "1")["inputs"][0]["shape"] == [-1, -1]
    assert client.get_model_repository_index()[0] == {"name": "float32", "version": "1", "state": "READY"}
    edge.service.is_ready = False
    assert not client.is_server_ready()
    assert not client.is_model_ready("float32")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("wish", [None, True, False])
def test_every_mix_of_json_and_binary(client: Any, binary_in: bool, wish: bool | None) -> None:
    outputs = None if wish is None else [triton.InferRequestedOutput("y", binary_data=wish)]
    result = client.infer("float32", [tensor(X, "FP32", binary=binary_in)], outputs=outputs, request_id="7")
    assert result.as_numpy("y").tolist() == X.tolist()
    assert result.get_response()["id"] == "7"
    assert result.get_response()["model_version"] == "1"
    assert ("data" in result.get_output("y")) == (wish is False)


@pytest.mark.parametrize(
    ("name", "datatype"),
    [
        ("bool", "BOOL"), ("uint8", "UINT8"), ("uint16", "UINT16"), ("uint32", "UINT32"), ("uint64", "UINT64"),
        ("int8", "INT8"), ("int16", "INT16"), ("int32", "INT32"), ("int64", "INT64"),
        ("float16", "FP16"), ("float32", "FP32"), ("float64", "FP64"),
    ],
)  # fmt: skip
def test_every_number(client: Any, name: str, datatype: str) -> None:
    array = np.array([[0, 1, 1]], name)
    result = client.infer(name, [tensor(array, datatype)]).as_numpy("y")
    assert result.dtype == array.dtype
    assert result.tolist() == array.tolist()


def test_bfloat16_travels_as_its_bits(client: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = client.infer("bfloat16", [tensor(X.astype(ml_dtypes.bfloat16), "BF16")])
    assert result.get_output("y")["datatype"] == "BF16"
    assert result.as_numpy("y").astype(np.float32).tolist() == X.tolist()  # all of them fit into bfloat16


@pytest.mark.parametrize("binary", [True, False])
def test_texts(client: Any, binary: bool) -> None:
    texts = np.array([["grüß", ""]], object)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
    result = client.infer("string", [tensor(texts, "BYTES", binary=binary)], outputs=outputs).as_numpy("y")
    assert [t if isinstance(t, str) else t.decode() for t in result.ravel()] == ["grüß", ""]


def test_an_empty_tensor(client: Any) -> None:
    assert client.infer("float32", [tensor(np.empty((1, 0), np.float32), "FP32")]).as_numpy("y").shape == (1, 0)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression_both_ways(client: Any, coding: str) -> None:
    array = np.ones((1, 5000), np.float32)
    packed = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    assert client.infer("float32", [tensor(array, "FP32")], **packed).as_numpy("y").tolist() == array.tolist()


def test_asynchronous_requests(client: Any) -> None:
    waiting = [client.async_infer("float32", [tensor(X + n, "FP32")]) for n in range(10)]
    for n, one in enumerate(waiting):
        assert one.get_result().as_numpy("y").tolist() == (X + n).tolist()


def test_timeouts_and_own_parameters_reach_the_service(client: Any, edge: Any) -> None:
    client.infer("float32", [tensor(X, "FP32")], timeout=10_000_000, priority=3, parameters={"own": "value"})
    request = edge.service.requests[-1]
    assert request.deadline is not None
    assert request.parameters == {"priority": 3, "own": "value"}


@pytest.mark.parametrize(
    ("model", "given", "status", "words"),
    [
        ("unknown", [tensor(X, "FP32")], "404", "unknown"),
        ("float32", [tensor(X, "FP32", name="z")], "400", "unexpected input 'z'"),
        ("float32", [tensor(X.astype(np.float64), "FP64")], "400", "float64, expected float32"),
        ("float32", [tensor(X[0], "FP32")], "400", "2 dimensions"),
        ("float32", [tensor(X, "FP32", binary=False), tensor(X, "FP32", binary=False)], "400", "more than once"),
    ],
)
def test_errors_arrive_with_their_text(client: Any, model: str, given: list[Any], status: str, words: str) -> None:
    with pytest.raises(utils.InferenceServerException, match=words) as caught:
        client.infer(model, given)
    assert caught.value.status() == status


def test_sequences_are_refused_not_ignored(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="sequence"):
        client.infer("float32", [tensor(X, "FP32")], sequence_id=7, sequence_start=True)


def test_nan_in_json_is_an_error_that_names_the_output(client: Any) -> None:
    bad = np.array([[np.nan, 1.0]], np.float32)
    with pytest.raises(utils.InferenceServerException, match=r"output 'y'.*not finite"):
        client.infer("float32", [tensor(bad, "FP32")], outputs=[triton.InferRequestedOutput("y", binary_data=False)])
    assert client.infer("float32", [tensor(bad, "FP32")]).as_numpy("y").tobytes() == bad.tobytes()
