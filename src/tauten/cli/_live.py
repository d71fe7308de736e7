"""What the verbs that face a live server share: a server process for a bundle, live progress, the report of a load."""

from __future__ import annotations

import datetime
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tauten.cli import _terminal
from tauten.measure import host, load
from tauten.reports.data import LatencyData, ReportData, Section
from tauten.reports.html import render
from tauten.spec.bundle import Bundle
from tauten.spec.errors import BadUsage, EngineFailed, Lacking, PortInUse


@dataclass(frozen=True, slots=True)
class Running:
    """A server process and where it listens."""

    process: subprocess.Popen[str]
    url: str


def _interrupt(*_: object) -> None:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: without leaving a server behind."""
    raise KeyboardInterrupt


@contextmanager
def server(bundle: Path, port: int = 0) -> Iterator[Running]:
    """A server process for a bundle, as in production: load and server do not share an interpreter.

    Ended with one SIGTERM, which lets it answer what is in flight, however this process is told to end. Raises BadBundle where
    files do not match their manifest, Lacking or EngineFailed when it ends by itself.
    """
    Bundle.open(bundle)
    command = [sys.executable, "-m", "tauten", "serve", str(bundle), "--http-port", str(port), "--metrics-port", "-1"]
    # In a group of its own: Ctrl-C would reach it too, and the SIGTERM that follows would be its second signal, which cuts.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)  # noqa: S603  our own command
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert process.stdout is not None, "bug: the pipe was asked for"
        with _terminal.working(f"starting a server for {bundle}"):
            first = process.stdout.readline()
        if not first:
            failed = Lacking if process.wait() == 3 else EngineFailed
            raise failed("the server ended before it was ready", fix="see its message above")
        yield Running(process, json.loads(first)["http"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


def require_free(port: int) -> None:
    """Asks early what the server would say after a long build. Raises BadUsage for no port, PortInUse."""
    if not 0 <= port <= 65535:
        raise BadUsage(f"--http-port {port} is not a port", fix="give a number from 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUse(
                f"port {port} on 127.0.0.1 cannot be had: {error.strerror}", fix="give another --http-port (0 takes a free one)"
            ) from error


@contextmanager
def load_progress(what: str, seconds: float) -> Iterator[load.Progress]:
    """A bar with what was answered and what failed, on a terminal; one plain line elsewhere; on stderr."""
    console = _terminal.err()
    if not sys.stderr.isatty():
        console.print(f"{what} for {seconds:g} s", style="dim", markup=False)
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=seconds, told="")

        def tell(elapsed: float, answered: int, failed: int) -> None:
            bar.update(task, completed=elapsed, told=f"{answered:,} answered, {failed:,} failed")

        yield tell


def write_report(path: str, title: str, latency: LatencyData, sections: tuple[Section, ...], digests: dict[str, str]) -> None:
    """One HTML file. Raises BadUsage where it cannot be written."""
    text = render(
        ReportData(
            title=title, made=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", sections=sections, latency=latency,
            environment=environment(), digests=digests,
        )
    )  # fmt: skip
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadUsage(
            f"report {path!r} cannot be written: {error.strerror}", fix="give a path in a folder that exists"
        ) from error
    _terminal.err().print(f"report {path}", style="dim", soft_wrap=True, markup=False)


def environment() -> dict[str, str]:
    """Host facts in words."""
    facts = host.facts()
    versions = {name: str(version) for name, version in facts.pop("versions").items()}
    shown = {key.replace("_", " "): _words(value) for key, value in facts.items() if value not in (None, [], {})}
    return {**shown, **versions}


def _words(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in value.items())
        case list():
            return " ".join(map(str, value))
        case _:
            return str(value)
