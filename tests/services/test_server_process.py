"""Real servers under bad company: poisoned neighbours, lengths that lie, damaged bundles, signals while they work."""

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tritonclient.http as triton

import tauten
from tauten import testing
from tauten.spec.bundle import Bundle
from tauten.spec.errors import BadRequest, EngineFailed, NotFound, TautenError
from tauten.spec.tensors import Array

SERVE = [sys.executable, "-m", "tauten", "serve", "--metrics-port", "-1", "--http-port", "0"]


@contextmanager
def process(*arguments: str | Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server process that is ready, and its address. Its errors go where the test's go."""
    with subprocess.Popen([*SERVE, *map(str, arguments)], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, json.loads(running.stdout.readline())["http"]
        finally:
            running.kill()


def ranged_contract() -> tauten.Contract:
    contract = testing.tiny_contract("ranged")
    ids = msgspec.structs.replace(contract.inputs["input_ids"], range=(0, testing.WORDS - 1))
    return msgspec.structs.replace(contract, inputs={**contract.inputs, "input_ids": ids})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server with `tiny`, whose ids have no range, and `ranged`, whose ids have one."""
    folder = tmp_path_factory.mktemp("repository")
    testing.tiny_bundle(folder, text=True)
    testing.tiny_bundle(folder, name="ranged", contract=ranged_contract())
    with process("--model-repository", folder) as (_, address):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[tauten.Client]:
    with tauten.Client(url) as made:
        yield made


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call gave or raised; all are let go at the same moment."""
    together = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        together.wait(30)
        try:
            return call()
        except TautenError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def asked(client: tauten.Client, model: str, inputs: dict[str, Array]) -> Callable[[], Any]:
    return lambda: client.infer(model, inputs)


UNKNOWN_WORD = testing.tiny_inputs([1, testing.WORDS])
TOO_WIDE = testing.tiny_inputs([1] * (testing.LONGEST + 1))
FLAT = {name: value[0] for name, value in testing.tiny_inputs([1, 2]).items()}


@pytest.mark.parametrize(
    ("model", "bad", "error", "says"),
    [
        ("ranged", UNKNOWN_WORD, BadRequest, r"input_ids.*32.*31"),  # refused before it is queued
        ("tiny", UNKNOWN_WORD, EngineFailed, "out of data bounds"),  # fails in the engine, and then alone
        ("tiny", TOO_WIDE, BadRequest, "allowed is 1 to 16"),
        ("tiny", FLAT, BadRequest, "dimensions"),
    ],
)
def test_a_bad_request_among_eight_harms_none_of_the_others(
    client: tauten.Client, model: str, bad: dict[str, Array], error: type[TautenError], says: str
) -> None:
    for rotation in range(12):  # so that it shares a batch with others, at every place of it
        good = [testing.tiny_inputs(range(1, 2 + (n + rotation) % 7)) for n in range(7)]
        calls = [asked(client, model, g) for g in good]
        calls.insert(rotation % 8, asked(client, model, bad))
        answers = at_once(calls)
        refused = answers.pop(rotation % 8)
        assert isinstance(refused, error), refused
        with pytest.raises(error, match=says):
            raise refused
        for given, got in zip(good, answers, strict=True):
            for name, want in testing.tiny_answer(given).items():
                np.testing.assert_allclose(got[name], want, atol=1e-5, err_msg=name)


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request("POST", "/v2/models/tiny/infer", body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def as_json(ids: list[int], shape: list[int]) -> dict[str, Any]:
    mask = {"name": "attention_mask", "datatype": "INT64", "shape": [1, 5], "data": [1] * 5}
    return {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": shape, "data": ids}, mask]}


def as_binary(ids: list[int], said: int) -> tuple[bytes, str]:
    """Five ids are declared, their size is told as `said` bytes, and those of `ids` are sent."""
    wish = as_json([], [1, 5])
    wish["inputs"][0] = {"name": "input_ids", "datatype": "INT64", "shape": [1, 5], "parameters": {"binary_data_size": said}}
    head = json.dumps(wish).encode()
    return head + np.array(ids, np.int64).tobytes(), str(len(head))


@pytest.mark.parametrize("count", [3, 7])
@pytest.mark.parametrize("kind", ["json", "binary", "binary, size told wrong"])
def test_lengths_that_lie_are_refused_and_never_reach_another_client(url: str, kind: str, count: int) -> None:
    ids = list(range(1, count + 1))
    body, length = as_binary(ids, 8 * (count if kind == "binary" else 5))
    headers = {} if kind == "json" else {"Inference_Header_Content_Length": length}
    body = json.dumps(as_json(ids, [1, 5])).encode() if kind == "json" else body
    neighbour = [20, 21, 22, 23, 24]
    for _ in range(8):
        (status, told), (fine, answer) = at_once(
            [lambda: post(url, body, **headers), lambda: post(url, json.dumps(as_json(neighbour, [1, 5])).encode())]
        )
        assert status == 400
        assert "input_ids" in told["error"] or "binary" in told["error"], told
        want = testing.tiny_answer(testing.tiny_inputs(neighbour))
        got = {o["name"]: np.array(o["data"], np.float32).reshape(o["shape"]) for o in answer["outputs"]}
        assert fine == 200
        np.testing.assert_allclose(got["tokens"], want["tokens"], atol=1e-5)


def test_as_many_elements_in_another_shape_are_another_request(url: str) -> None:
    status, told = post(url, json.dumps(as_json([1, 2, 3, 4, 5], [5, 1])).encode())
    assert (status, "batch" in told["error"] or "seq" in told["error"]) == (400, True)


def test_the_numbers_that_triton_shows_count_up(client: tauten.Client) -> None:
    def counted(name: str) -> float:
        lines = [x for x in client.metrics().splitlines() if x.startswith(f'{name}{{model="tiny",')]
        return sum(float(x.rpartition(" ")[2]) for x in lines)

    names = ("nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
             "nv_inference_request_duration_us", "nv_inference_queue_duration_us",
             "nv_inference_compute_infer_duration_us")  # fmt: skip
    before = {name: counted(name) for name in names}
    client.infer("tiny", testing.tiny_inputs([1, 2], [3]))
    with pytest.raises(EngineFailed):
        client.infer("tiny", UNKNOWN_WORD)
    grown = {name: counted(name) - before[name] for name in names}
    assert grown["nv_inference_request_success"] == 1
    assert grown["nv_inference_request_failure"] == 1
    assert grown["nv_inference_count"] >= 2
    assert grown["nv_inference_exec_count"] >= 1
    assert all(grown[name] > 0 for name in names), grown


def test_an_unmodified_client_gets_errors_with_their_status(url: str) -> None:
    asking = triton.InferenceServerClient(url.removeprefix("http://"))
    for model, shape, status in (("nobody", [1, 2], "404"), ("tiny", [1, 17], "400"), ("tiny", [1, 2, 3], "400")):
        given = [triton.InferInput(name, shape, "INT64") for name in ("input_ids", "attention_mask")]
        for one in given:
            one.set_data_from_numpy(np.ones(shape, np.int64))
        with pytest.raises(triton.InferenceServerException) as caught:
            asking.infer(model, given)
        assert caught.value.status() == status
    assert {i["name"] for i in asking.get_model_repository_index()} == {"tiny", "ranged"}
    asking.close()


def test_a_server_is_without_the_weight_of_any_framework(tmp_path: Path) -> None:
    with process(testing.tiny_bundle(tmp_path, text=True).root) as (running, address):
        with tauten.Client(address) as client:
            assert len(client.predict("tiny", "w3 w4")["embedding"]) == testing.VECTOR
        mapped = Path(f"/proc/{running.pid}/maps").read_text()
    assert "/onnxruntime/" in mapped  # libraries are seen in this way
    assert not [line for line in mapped.splitlines() if any(f"/{heavy}/" in line for heavy in ("torch", "onnx", "pyarrow"))]


def slow_request(client: tauten.Client, value: float) -> float | TautenError:
    try:
        return float(client.infer("slow", {"x": np.full((1, 1), value, np.float32)})["y"][0, 0])
    except TautenError as error:
        return error


def until_busy(client: tauten.Client, waiting: int) -> None:
    """Asks until so many requests stand behind the one that runs."""
    for _ in range(5000):
        told = [x for x in client.metrics().splitlines() if x.startswith("nv_inference_pending_request_count")]
        if told and float(told[0].rpartition(" ")[2]) >= waiting:
            return
    raise AssertionError("the requests never waited")


def until_not_ready(client: tauten.Client) -> None:
    for _ in range(5000):
        if not client.ready():
            return
    raise AssertionError("it stays ready after SIGTERM")


def test_not_ready_at_once_and_still_every_answer(slow: Bundle) -> None:
    with process(slow.root) as (running, address), tauten.Client(address) as client, ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(slow_request, client, float(n)) for n in range(12)]
        until_busy(client, 5)
        running.send_signal(signal.SIGTERM)
        until_not_ready(client)
        early = sum(w.done() for w in waiting)
        assert [w.result() for w in waiting] == [float(n) for n in range(12)]
        assert early < 12, "it was not ready only when all was over"
        assert running.wait(60) == 0


def test_a_second_signal_cuts(slow: Bundle) -> None:
    """With so many in flight that answering them would take far longer than the test may."""
    with process(slow.root, "--exit-timeout-secs", "3600") as (running, address), tauten.Client(address) as client:
        with ThreadPoolExecutor(40) as pool:
            waiting = [pool.submit(slow_request, client, float(n)) for n in range(40)]
            until_busy(client, 30)
            running.send_signal(signal.SIGTERM)
            until_not_ready(client)
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
            answers = [w.result() for w in waiting]
        assert sum(isinstance(a, TautenError) for a in answers) >= 20
        assert all(a == n for n, a in enumerate(answers) if not isinstance(a, TautenError))


KINDS = ["variants/fp32/model.onnx", "variants/fp32/settings.json", "contract.yaml", "golden/inputs.npz", "golden/outputs.npz",
         "processors/tokenizer.json", "manifest.json"]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_one_changed_byte_in_a_file_of_any_kind_and_nothing_is_served(name: str, tmp_path: Path) -> None:
    root = testing.tiny_bundle(tmp_path, text=True).root
    assert {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()} == set(KINDS)
    data = bytearray((root / name).read_bytes())
    data[len(data) // 2] ^= 1
    (root / name).write_bytes(data)
    done = subprocess.run([*SERVE, str(root)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert name in done.stderr or name == "manifest.json"
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


def test_in_this_process(tmp_path: Path) -> None:
    bundle = testing.tiny_bundle(tmp_path, text=True)
    inputs = testing.tiny_inputs([3, 1, 2], [5])
    with tauten.serve(bundle, port=0) as server, tauten.Client(server.url) as client:
        assert client.ready("tiny")
        answer = client.infer("tiny", inputs, outputs=["embedding"])
        assert list(answer) == ["embedding"]
        np.testing.assert_allclose(answer["embedding"], testing.tiny_answer(inputs)["embedding"], atol=1e-5)
        one = client.predict("tiny", "w3 w4")["embedding"]  # a tokenizer puts [CLS], id 1, before
        np.testing.assert_allclose(one, testing.tiny_answer(testing.tiny_inputs([1, 3, 4]))["embedding"][0], atol=1e-5)
        assert np.array(client.predict("tiny", ["w3 w4", "w5"])["embedding"]).shape == (2, testing.VECTOR)
        with pytest.raises(NotFound, match="nobody"):
            client.infer("nobody", inputs)
    assert not client.ready()
