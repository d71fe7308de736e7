"""Served MiniLM against the same session in process, and INT8 against FP32, both served: ratios within one run.

    python bench/minilm.py MODEL_DIR BUNDLE [--rounds 7] [--out bench/results/minilm.json]

BUNDLE is what the line chose for MODEL_DIR; an FP32 bundle is built beside it under the same contract. Both servers are up
together and take turns; in-process runs use the bundle's own variant and settings while both servers are idle. Every figure
is the median of several rounds, every ratio is taken within a round. The load generator shares the cores with the servers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import msgspec
import numpy as np

from tauten.delivery.tune import throughput
from tauten.measure import host, load
from tauten.spec import plugins
from tauten.spec.bundle import Bundle
from tauten.spec.engine import Session, Tensors

SEQ, SECONDS, PAUSE_S = 32, 3.0, 0.0005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("chosen", type=Path, help="the bundle that `tauten build` or scripts/demo made of it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench/results/minilm.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bundles = {"chosen": Bundle.open(args.chosen), "fp32": build_fp32(args, Path(scratch))}
        with contextlib.ExitStack() as stack:
            urls = {name: stack.enter_context(server(bundle)) for name, bundle in bundles.items()}
            rounds = [one_round(bundles, urls) for _ in range(args.rounds)]
            found = {
                "how": __doc__,
                "host": host.facts(),
                "bundles": {n: facts(b) for n, b in bundles.items()},
                "rounds": rounds,
            }
    found["summary"] = summary(rounds)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def build_fp32(args: argparse.Namespace, scratch: Path) -> Bundle:
    """The same model under the same contract, but only FP32 may be delivered, and there is no data to wait for."""
    contract = Bundle.open(args.chosen).contract()
    target = msgspec.structs.replace(contract.target, precision=("float32",))
    path = scratch / "contract.yaml"
    path.write_text(msgspec.structs.replace(contract, target=target, accuracy=None).dumps())
    flags = ["-c", str(path), "-o", str(scratch / "out"), "--only-variant", "fp32"]
    subprocess.run([sys.executable, "-m", "tauten", "build", str(args.model), *flags], check=True, stdout=sys.stderr)
    return Bundle.open(next((scratch / "out").iterdir()))


@contextlib.contextmanager
def server(bundle: Bundle) -> Iterator[str]:
    command = [sys.executable, "-m", "tauten", "serve", str(bundle.root), "--http-port", "0", "--metrics-port", "-1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["http"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def facts(bundle: Bundle) -> dict[str, object]:
    tuning = json.loads((bundle.root / "evidence" / "tuning.json").read_bytes())
    return {
        "variant": bundle.manifest.default,
        "settings": msgspec.to_builtins(bundle.settings()),
        "candidates": [
            {k: c[k] for k in ("name", "score", "samples_per_s", "chosen", "refused_by")} for c in tuning["candidates"]
        ],
    }


def feed(bundle: Bundle, rows: int, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    high = bundle.manifest.signature.inputs["input_ids"].range
    assert high is not None
    return {
        "input_ids": rng.integers(0, int(high[1]), (rows, SEQ), dtype=np.int64, endpoint=True),
        "attention_mask": np.ones((rows, SEQ), np.int64),
    }


def message(bundle: Bundle, url: str, seed: int) -> bytes:
    """One V2 request with binary tensors, one row."""
    tensors = feed(bundle, 1, seed)
    head = json.dumps({
        "inputs": [{"name": n, "shape": list(v.shape), "datatype": "INT64", "parameters": {"binary_data_size": v.nbytes}}
                   for n, v in tensors.items()],
        "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    body = head + b"".join(v.tobytes() for v in tensors.values())
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    where = urlsplit(url)
    return load.http_message(where.netloc, f"/v2/models/{bundle.manifest.name}/infer", body, headers)


def one_round(bundles: dict[str, Bundle], urls: dict[str, str]) -> dict[str, dict[str, float]]:
    return {name: {**in_process(bundle), **served(bundle, urls[name])} for name, bundle in bundles.items()}


def in_process(bundle: Bundle) -> dict[str, float]:
    """The session of the variant alone: its best batch with its callers; one row with one caller, with and without rest."""
    settings = bundle.settings()
    engine = plugins.load("engines", settings.engine)
    sessions = [engine.open(bundle.model_path(), settings.session) for _ in range(settings.instances)]
    try:
        best = max(
            throughput([s.run for s in sessions], feed(bundle, rows, 0), rows, SECONDS / 3)[0] for rows in (1, 8, 16, 32)
        )
        alone = one_by_one(sessions[0], bundle, pause_s=0)
        paced = one_by_one(sessions[0], bundle, pause_s=PAUSE_S)
    finally:
        for session in sessions:
            session.close()
    return {"in_process_samples_per_s": best, "in_process_p50_ms": alone, "in_process_paced_p50_ms": paced}


def one_by_one(session: Session, bundle: Bundle, *, pause_s: float) -> float:
    """Median ms of one row, another one each time, the processor idle for `pause_s` in between as it is between requests."""
    feeds = [feed(bundle, 1, seed) for seed in range(64)]
    times: list[float] = []
    end = time.perf_counter() + SECONDS / 2
    while (start := time.perf_counter()) < end:
        session.run(feeds[len(times) % 64])
        times.append(time.perf_counter() - start)
        if pause_s:
            time.sleep(pause_s)
    return median(times) * 1000


def served(bundle: Bundle, url: str) -> dict[str, float]:
    """Closed loop with 32 requests in flight, then with one."""
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    requests = tuple(message(bundle, url, seed) for seed in range(64))
    found: dict[str, float] = {}
    for concurrency in (32, 1):
        plan = load.LoadPlan(host=where.hostname, port=where.port, requests=requests, seconds=SECONDS, concurrency=concurrency)
        seen = load.run(plan)
        assert seen.failed == 0, seen.errors
        found[f"served_c{concurrency}_samples_per_s"] = seen.requests_per_s
        found[f"served_c{concurrency}_p50_ms"] = float(np.percentile(seen.latencies, 50)) * 1000
        found[f"served_c{concurrency}_p99_ms"] = float(np.percentile(seen.latencies, 99)) * 1000
    return found


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, object]:
    """Median and range of every ratio within a round."""

    def over(values: list[float]) -> dict[str, float]:
        return {
            "median": round(median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
            "rounds": len(values),
        }

    told: dict[str, object] = {}
    for name in rounds[0]:
        ratio = [r[name]["served_c32_samples_per_s"] / r[name]["in_process_samples_per_s"] for r in rounds]
        added = [r[name]["served_c1_p50_ms"] - r[name]["in_process_p50_ms"] for r in rounds]
        told[f"{name}: served at concurrency 32 / in process at its best batch"] = over(ratio)
        told[f"{name}: ms that serving adds to p50 at concurrency 1, against runs back to back"] = over(added)
        paced = [r[name]["served_c1_p50_ms"] - r[name]["in_process_paced_p50_ms"] for r in rounds]
        told[f"{name}: the same, against runs with a pause of {PAUSE_S * 1000:g} ms between them"] = over(paced)
    told["chosen / fp32, both served at concurrency 32"] = over(
        [r["chosen"]["served_c32_samples_per_s"] / r["fp32"]["served_c32_samples_per_s"] for r in rounds]
    )
    return told


if __name__ == "__main__":
    main()
