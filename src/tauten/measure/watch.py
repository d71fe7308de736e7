"""A thread that keeps looking at a live server while load is on it, and what it must answer."""

from __future__ import annotations

import contextlib
import threading
import time
from math import inf, isnan
from typing import Any

import numpy as np

from tauten.measure.compare import EXACT, worst
from tauten.measure.draw import draw_all
from tauten.measure.live import Live, around
from tauten.measure.observed import Moved
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import BadRequest, Unavailable
from tauten.spec.golden import read_probes
from tauten.spec.signature import BATCH
from tauten.spec.wire import decode_reply

LOOK_S = 1.0  # how often the watcher looks
GENTLE = 20.0  # golden probes are at most one in so many requests of the load


def golden(bundle: Bundle | None, contract: Contract) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(inputs, sealed answers) by probe. Without a bundle a few drawn inputs, and no answers to hold them against."""
    if bundle is None:
        random = np.random.default_rng(1)
        drawn = [{name: around(a, random) if name != BATCH else a.min for name, a in contract.axes.items()} for _ in range(4)]
        return {f"drawn {i}": draw_all(contract.signature, sizes, seed=i) for i, sizes in enumerate(drawn)}, {}
    answers = (bundle.root / bundle.variant().settings).with_name("answers.npz")
    return read_probes(bundle.root / "golden" / "inputs.npz"), read_probes(answers) if answers.is_file() else {}


class Watch:
    """Looks at a server from a thread of its own while load is on it: ready? how much memory? do golden probes hold?

    Used as a context manager; the first and the last round of golden probes are before and after the load.
    """

    def __init__(self, url: str, contract: Contract, bundle: Bundle | None, *, rate: float) -> None:
        self.ready: list[tuple[float, bool]] = []
        self.resident: list[tuple[float, float]] = []
        self.moved: list[Moved] = []
        self._url, self._model = url, contract.name
        self._inputs, self._answers = golden(bundle, contract)
        self.against = "its sealed answers" if self._answers else "its first answers"
        self._probe_every = max(LOOK_S, GENTLE / rate)
        self._start, self._stop = time.perf_counter(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tauten-watch")

    def __enter__(self) -> Watch:
        with Live(self._url) as live:
            for probe in self._inputs:
                self._try(live, probe)
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with Live(self._url) as live, contextlib.suppress(Unavailable):  # gone by now: availability has it
            for probe in self._inputs:
                self._try(live, probe)

    def _run(self) -> None:
        turn, next_probe = 0, 0.0
        names = list(self._inputs)
        with Live(self._url, timeout_s=5.0) as live:
            while not self._stop.is_set():
                at = time.perf_counter() - self._start
                try:
                    self.ready.append((at, live.ready()))
                    if (mb := live.resident_mb()) is not None:
                        self.resident.append((at, mb))
                    if at >= next_probe and names:
                        self._try(live, names[turn % len(names)])
                        turn, next_probe = turn + 1, at + self._probe_every
                except Unavailable:
                    self.ready.append((at, False))
                self._stop.wait(LOOK_S)

    def _try(self, live: Live, probe: str) -> None:
        """One golden probe. The first answer is the measure where no sealed one is; a busy server is not a changed one."""
        answer = live.infer(self._model, self._inputs[probe])
        if answer.status in {429, 503, 504}:
            return
        at = time.perf_counter() - self._start
        if answer.status != 200:
            self.moved.append(Moved(at, probe, inf))
            return
        try:
            outputs = decode_reply(answer.body, answer.head_length).outputs
        except BadRequest:
            self.moved.append(Moved(at, probe, inf))
            return
        if probe not in self._answers:
            self._answers[probe] = {name: np.array(value) for name, value in outputs.items()}
            return
        self.moved.append(Moved(at, probe, apart(outputs, self._answers[probe])))


def apart(got: Tensors, want: Tensors) -> float:
    """The worst absolute difference over all outputs; infinite where one is missing, not finite or of another shape."""
    if set(got) != set(want):
        return inf
    found = max((worst(got[name], want[name], EXACT).max_abs for name in want), default=0.0)
    return inf if isnan(found) else found
