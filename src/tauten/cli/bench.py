"""tauten bench: load on a server, open or closed loop, with percentiles that say how sure they are."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from tauten.cli import _arguments, _live, _terminal
from tauten.measure import host, load, memory
from tauten.measure.digests import Digest
from tauten.measure.live import Live, requests
from tauten.reports.data import latency_data
from tauten.spec.contract import Contract
from tauten.spec.errors import BadUsage

HELP = "put load on a server: an arrival rate or a concurrency; percentiles with their confidence"
QUANTILES = (0.5, 0.9, 0.99, 0.999)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    verb.add_argument("target", metavar="URL|BUNDLE", help="a server's address, or a bundle to serve for the time being")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--rate", type=_arguments.above_zero(float), metavar="R",
                     help="open loop: Poisson arrivals per second, latency from when it is due (default slo.rate)")  # fmt: skip
    how.add_argument("--concurrency", type=_arguments.above_zero(int), metavar="N", help="closed loop: N requests in flight")
    verb.add_argument("--for", dest="seconds", type=_arguments.duration, default=10.0, metavar="TIME",
                      help="how long, such as 10s or 2m (default 10s)")  # fmt: skip
    verb.add_argument("--model", metavar="M", help="which model (default: the only one)")
    verb.add_argument("-c", "--contract", metavar="FILE", help="signature to send (default: what the server tells)")
    verb.add_argument("--rows", type=_arguments.above_zero(int), default=1, metavar="N", help="rows in a request (default 1)")
    verb.add_argument("--size", type=_arguments.axis_size, action="append", default=[], metavar="AXIS=N",
                      help="fix an axis, such as seq=32 (default: around its optimum)")  # fmt: skip
    verb.add_argument(
        "--warm-up", type=_arguments.duration, default=1.0, metavar="TIME", help="unmeasured load before (default 1s)"
    )
    verb.add_argument("--seed", type=_arguments.seed, default=0, help="of arrivals and values (default 0)")
    verb.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    verb.add_argument("--report", metavar="FILE", help="write an HTML report")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when nothing at all was answered."""
    with _target(args.target) as where, Live(where["http"]) as live:
        contract = _contract(args, live)
        rate = args.rate or (contract.slo.rate if contract.slo and not args.concurrency else None)
        concurrency = None if rate else args.concurrency or 1
        made = requests(live, contract, rows=args.rows, sizes=dict(args.size), seed=args.seed)
        what = f"Poisson at {rate:g} requests/s" if rate else f"{concurrency} in flight"
        label = (
            f"{'open' if rate else 'closed'} loop, {what} for {args.seconds:g} s, {args.rows} row{'s'[: args.rows > 1]} each"
        )
        plan = load.LoadPlan(host=live.host, port=live.port, requests=made, rate=rate, concurrency=concurrency,
                             seconds=args.seconds, seed=args.seed)  # fmt: skip
        plan.check()
        load.run(
            load.LoadPlan(host=live.host, port=live.port, requests=made, concurrency=concurrency or 1, seconds=args.warm_up)
        )
        with _live.load_progress(f"{contract.name}: {what}", args.seconds) as progress:
            seen = load.run(plan, progress)
        figures = summary(seen, rows=args.rows)
        figures |= {"model": contract.name, "load": label, "resident_mb": live.resident_mb(), "host": host.facts()}
        if "pid" in where:
            figures["pss_mb"] = memory.mb(memory.pss_of_tree(where["pid"]))
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        _show(figures)
    if args.report:
        latency = latency_data(seen, label, slo=contract.slo if rate else None, rows=args.rows)
        _live.write_report(args.report, f"{contract.name} under load", latency, (), {"contract": contract.digest})
    return 0 if seen.ok.any() else 1


def summary(seen: load.Observations, *, rows: int) -> dict[str, Any]:
    """The figures as plain data: times in ms, each percentile with its 95 % interval (null where the sample is too small)."""
    lag = seen.lag.quantile(0.99) if seen.open_loop else None
    return {
        "requests": int(seen.status.size),
        "failed": seen.failed,
        "errors": dict(seen.errors),
        "requests_per_s": round(seen.requests_per_s, 3),
        "samples_per_s": round(seen.requests_per_s * rows, 3),
        "latency_ms": Digest(seen.latencies * 1000).summary(QUANTILES),
        "generator": {"lag_p99_ms": lag.value * 1000 if lag else None, "processor_share": round(seen.cpu_s / seen.seconds, 4)},
    }


@contextmanager
def _target(given: str) -> Iterator[dict[str, Any]]:
    """Where it listens: as given, or a server started for a bundle, which also tells its pid."""
    if Path(given).is_dir():
        with _live.server(Path(given)) as running:
            yield {"http": running.url, "pid": running.process.pid}
    elif "://" in given or given.rpartition(":")[2].isdigit():
        yield {"http": given}
    else:
        raise BadUsage(f"{given!r} is neither an address nor a bundle directory", fix="give http://host:port, or a directory")


def _contract(args: argparse.Namespace, live: Live) -> Contract:
    if args.contract:
        contract = Contract.load(args.contract)
        live.require(contract.name)
        return contract
    models = live.models()
    if not args.model and len(models) != 1:
        raise BadUsage(
            f"the server has {len(models)} models: {', '.join(models) or 'none is ready'}", fix="name one with --model"
        )
    model = args.model or models[0]
    live.require(model)
    told = live.contract(model)
    if told is None:
        raise BadUsage(f"the server does not tell the contract of {model!r}", fix="give its signature with -c contract.yaml")
    return told


def _show(figures: dict[str, Any]) -> None:
    console = _terminal.out()
    console.print(f"{figures['model']}: {figures['load']}", style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("latency")
    for column in ("ms", "95 % from", "to"):
        table.add_column(column, justify="right")
    latency = figures["latency_ms"]
    for label in (f"p{q * 100:g}" for q in QUANTILES):
        found = latency[label] or {"value": None, "low": None, "high": None}
        table.add_row(label, *(_terminal.number(found[key]) for key in ("value", "low", "high")))
    table.add_row("max", _terminal.number(latency["max"]), "", "")
    console.print(table)
    failed = (
        f", {figures['failed']:,} failed ({', '.join(f'{n:,} × {k}' for k, n in figures['errors'].items())})"
        if figures["failed"]
        else ""
    )
    console.print(f"{latency['count']:,} answers{failed}, {_terminal.number(figures['requests_per_s'])} requests/s, "
                  f"{_terminal.number(figures['samples_per_s'])} samples/s", markup=False)  # fmt: skip
    generator = figures["generator"]
    lag = f"was up to {generator['lag_p99_ms']:.2g} ms late (p99) and " if generator["lag_p99_ms"] is not None else ""
    console.print(f"the load generator {lag}used {generator['processor_share']:.0%} of a processor", style="dim", markup=False)
