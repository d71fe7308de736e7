"""Verifies a contract against a live server: load at the promised rate, looks from outside meanwhile, then every clause."""

from __future__ import annotations

import datetime
from typing import Protocol

from tauten.measure import load
from tauten.measure.live import Live, requests
from tauten.measure.observed import Observed
from tauten.measure.watch import Watch
from tauten.spec import plugins
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.verdict import Judgement, Verdict, waive

CLAUSES = ("latency", "jitter", "errors", "availability", "drift", "memory", "memory_growth", "integrity")
DEFAULT_RATE = 10.0  # requests/s where the contract promises nothing at a rate


class Clause(Protocol):
    """The shape of a module that judges. The clause's name is the name of its file."""

    def judge(self, observed: Observed, contract: Contract) -> tuple[Verdict, ...]: ...


def verify(
    url: str, contract: Contract, *, seconds: float, bundle: Bundle | None = None, progress: load.Progress | None = None
) -> tuple[Judgement, Observed]:
    """Performs the load for so many seconds and judges. Golden probes are held against the bundle's answers where it is given.

    Raises Unavailable when nobody is there, NotFound when the server does not have the contract's model.
    """
    observed = observe(url, contract, seconds=seconds, bundle=bundle, progress=progress)
    verdicts = waive(judge(observed, contract), contract.waivers, today=datetime.datetime.now(datetime.UTC).date())
    return Judgement(subject=bundle.identity if bundle else "", contract=contract.digest, verdicts=verdicts), observed


def observe(
    url: str, contract: Contract, *, seconds: float, bundle: Bundle | None = None, progress: load.Progress | None = None
) -> Observed:
    """Load and looks, without a judgement."""
    rate = contract.slo.rate if contract.slo else DEFAULT_RATE
    with Live(url) as live:
        live.require(contract.name)
        served = live.contract(contract.name)
        plan = load.LoadPlan(host=live.host, port=live.port, requests=requests(live, contract), rate=rate, seconds=seconds)
    plan.check()
    with Watch(url, contract, bundle, rate=rate) as watch:
        seen = load.run(plan, progress)
    return Observed(
        load=seen, ready=tuple(watch.ready), resident=tuple(watch.resident), moved=tuple(watch.moved), against=watch.against,
        served={"contract": served.digest} if served else {}, expected={"contract": contract.digest},
    )  # fmt: skip


def judge(observed: Observed, contract: Contract) -> list[Verdict]:
    """Every clause, in the order of CLAUSES. Pure."""
    modules: list[Clause] = [plugins.load("govern", name) for name in CLAUSES]
    return [verdict for clause in modules for verdict in clause.judge(observed, contract)]
