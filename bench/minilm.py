"""Served MiniLM against the same session in process, and INT8 against FP32, both served: ratios within one run.

    python bench/minilm.py MODEL_DIR CONTRACT [--rounds 7] [--out bench/results/minilm.json]

Two bundles are built from the same weights under the same contract: the one the line chooses, and FP32. Both servers are up
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
from tauten.spec.engine import Tensors

SEQ, SECONDS = 32, 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("contract", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench/results/minilm.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bundles = {
            "chosen": build(args, Path(scratch) / "chosen"),
            "fp32": build(args, Path(scratch) / "fp32", "--only-variant", "fp32"),
        }
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


def build(args: argparse.Namespace, target: Path, *flags: str) -> Bundle:
    command = [sys.executable, "-m", "tauten", "build", str(args.model), "-c", str(args.contract), "-o", str(target), *flags]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return Bundle.open(next(target.iterdir()))


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
    """The session of the bundle's variant alone: its best batch with its callers, and one row with one caller."""
    settings = bundle.settings()
    session = plugins.load("engines", settings.engine).open(bundle.model_path(), settings.session)
    try:
        best = max(
            throughput(session.run, feed(bundle, rows, 0), rows, settings.instances, SECONDS / 3)[0] for rows in (1, 8, 16, 32)
        )
        _, alone = throughput(session.run, feed(bundle, 1, 0), 1, 1, SECONDS / 3)
    finally:
        session.close()
    return {"in_process_samples_per_s": best, "in_process_p50_ms": alone}


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
        told[f"{name}: milliseconds that serving adds to p50 at concurrency 1"] = over(added)
    told["chosen / fp32, both served at concurrency 32"] = over(
        [r["chosen"]["served_c32_samples_per_s"] / r["fp32"]["served_c32_samples_per_s"] for r in rounds]
    )
    return told


if __name__ == "__main__":
    main()
