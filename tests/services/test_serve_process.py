"""A real server process: what it prints, how it answers an unmodified client, how it ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

import tauten
from tauten import testing
from tauten.spec.bundle import Bundle
from tauten.spec.errors import BadBundle, PortInUse

SERVE = [sys.executable, "-m", "tauten", "serve", "--http-port", "0"]


@contextmanager
def server(*arguments: str | Path, metrics_port: int = -1) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """A server process and what its first line says."""
    command = [*SERVE, "--metrics-port", str(metrics_port), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


def refused(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and message of a server that must not start. It says nothing on stdout."""
    done = subprocess.run([*SERVE, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def end(process: "subprocess.Popen[str]", number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(timeout=60)


def tensors(inputs: dict[str, Any], *, binary: bool = True) -> list[triton.InferInput]:
    made = []
    for name, value in inputs.items():
        one = triton.InferInput(name, value.shape, triton.np_to_triton_dtype(value.dtype))
        one.set_data_from_numpy(value, binary_data=binary)
        made.append(one)
    return made


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return testing.tiny_bundle(tmp_path_factory.mktemp("tiny"), text=True)


def test_an_unmodified_client_is_answered_and_the_process_ends_cleanly(tiny: Bundle) -> None:
    with server(tiny.root, metrics_port=0) as (process, where):
        assert where.keys() == {"http", "metrics", "pid"}
        assert where["pid"] == process.pid
        client = triton.InferenceServerClient(where["http"].removeprefix("http://"))
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("tiny")
        assert client.get_model_repository_index() == [{"name": "tiny", "version": "1", "state": "READY"}]
        metadata = client.get_model_metadata("tiny")
        assert [i["name"] for i in metadata["inputs"]] == ["input_ids", "attention_mask"]
        inputs = testing.tiny_inputs([3, 1, 2], [4, 5, 6, 7, 8])
        for binary in (True, False):
            got = client.infer("tiny", tensors(inputs, binary=binary), request_id="7")
            assert got.get_response()["id"] == "7"
            for name, want in testing.tiny_answer(inputs).items():
                np.testing.assert_allclose(got.as_numpy(name), want, atol=1e-5, rtol=1e-4)
        with pytest.raises(triton.InferenceServerException, match="allowed is 1 to 16"):
            client.infer("tiny", tensors(testing.tiny_inputs(range(17))))
        request = urllib.request.Request(
            f"{where['http']}/v2/models/tiny/predict", b'{"text": "w3 w1"}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert len(json.load(answer)["embedding"]) == testing.VECTOR
        assert b'nv_inference_request_success{model="tiny",version="1"} 3.0' in get(where["metrics"])
        assert b"nv_inference_request_success" in get(f"{where['http']}/metrics")
        with pytest.raises(urllib.error.HTTPError):
            get(where["metrics"].replace("/metrics", "/v2"))
        client.close()
        assert end(process) == 0


def test_what_is_in_flight_is_answered_on_the_way_out(slow: Bundle) -> None:
    with server(slow.root) as (process, where), ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, where["http"], float(i)) for i in range(4)]
        wait_until_pending(where["http"], 3)
        assert end(process) == 0
        assert sorted(a.result() for a in asked) == [(200, float(i)) for i in range(4)]
        with pytest.raises(urllib.error.URLError, match="refused"):
            get(f"{where['http']}/v2/health/live")


def test_when_time_is_up_who_still_waits_is_refused_and_who_runs_is_answered(slow: Bundle) -> None:
    with server(slow.root, "--exit-timeout-secs", "0") as (process, where), ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, where["http"], float(i)) for i in range(4)]
        wait_until_pending(where["http"], 3)
        assert end(process, signal.SIGINT) == 0
        statuses = sorted(a.result()[0] for a in asked)
        assert statuses[-1] == 503
        assert set(statuses) <= {200, 503}


def ask(url: str, value: float) -> tuple[int, float | None]:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}).encode()
    try:
        with urllib.request.urlopen(f"{url}/v2/models/slow/infer", body, timeout=60) as answer:
            return answer.status, json.load(answer)["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, None


def wait_until_pending(url: str, count: int) -> None:
    """Asks the server until that many requests wait behind the one that runs."""
    for _ in range(2000):
        found = [line for line in get(f"{url}/metrics").decode().splitlines() if line.startswith("nv_inference_pending")]
        if found and float(found[0].rpartition(" ")[2]) >= count:
            return
    raise AssertionError("the requests never waited")


def test_a_model_repository_is_served(tmp_path: Path) -> None:
    for version in ("1", "2"):
        testing.tiny_bundle(tmp_path, version=version)
    testing.tiny_bundle(tmp_path, name="other")
    with server("--model-repository", tmp_path) as (process, where):
        index = json.loads(urllib.request.urlopen(f"{where['http']}/v2/repository/index", b"", timeout=30).read())
        assert [(i["name"], i["version"], i["state"]) for i in index] == [("other", "1", "READY"), ("tiny", "2", "READY")]
        assert end(process) == 0


def test_a_port_in_use_is_said_so(tiny: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, message = refused(tiny.root, "--http-port", port)
        assert (code, f"port {port} on 127.0.0.1 is in use" in message, "fix:" in message) == (3, True, True)
        code, message = refused(tiny.root, "--metrics-port", port)
        assert (code, f"port {port}" in message) == (3, True)


def test_a_damaged_bundle_is_never_served(tmp_path: Path) -> None:
    root = testing.tiny_bundle(tmp_path).root
    path = root / "golden" / "inputs.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    code, message = refused(root, "--metrics-port", "-1")
    assert (code, "'golden/inputs.npz' has SHA-256" in message) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to serve"),
        (["/nowhere"], "manifest.json is missing"),
        (["--model-repository", "/nowhere"], "is not a directory"),
        (["/nowhere", "--http-port", "99999"], "is not a port"),
        (["/nowhere", "--http-prot", "1"], "unrecognized arguments"),
    ],
)
def test_bad_usage_is_told_in_one_message(arguments: list[str], says: str) -> None:
    code, message = refused("--metrics-port", "-1", *arguments)
    assert code == 2
    assert says in message.replace("\n", " ")


def test_the_same_from_python(tiny: Bundle) -> None:
    with tauten.serve(tiny, port=0) as running:
        assert json.loads(get(f"{running.url}/v2"))["name"] == "tauten"
        with pytest.raises(PortInUse):
            tauten.serve(tiny.root, port=int(running.url.rpartition(":")[2]))
        url = running.url
    running.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url)
    with pytest.raises(BadBundle):
        tauten.serve("/nowhere")
