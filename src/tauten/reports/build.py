"""Fills a report from a delivery: what the line found out, and what was seen of the live server."""

from __future__ import annotations

import datetime
from typing import Any

from tauten.delivery.candidates import Candidate
from tauten.delivery.line import Delivered
from tauten.measure import host
from tauten.measure.traffic import Observations
from tauten.reports.data import CandidateRow, LatencyData, ParityRow, ReportData, Section, Step, latency_data
from tauten.reports.html import render
from tauten.spec.verdict import Judgement, Verdict


def build_report(found: Delivered, *, live: Judgement | None = None, load: Observations | None = None) -> str:
    """The report of a delivery as one HTML page. `live` and `load` are what verifying the served bundle gave."""
    contract, chosen = found.job.contract, found.chosen
    assert chosen.judgement is not None
    sections = [Section(title=f"Gates: {chosen.name}, made by {chosen.made_by}", judgement=chosen.judgement)]
    if live is not None:
        sections.append(Section(title="Contract against the live server", judgement=live))
    slo = contract.slo
    latency: LatencyData | None = None
    if load is not None:
        latency = latency_data(
            load, f"open loop, Poisson, {slo.rate:g} requests/s" if slo else "open loop, Poisson", slo=slo, rows=1
        )
    return render(
        ReportData(
            title=contract.name,
            subtitle=f"{found.job.opened.kind} → {chosen.name}",
            made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            sections=tuple(sections),
            candidates=tuple(_row(c, chosen=c.name == chosen.name) for c in found.candidates),
            latency=latency,
            parity=_parity(chosen),
            environment={key: _shown(value) for key, value in host.facts().items()},
            digests=_digests(found),
            steps=tuple(
                Step(step=e.step, outcome=e.outcome, seconds=e.seconds, reason=e.reason) for e in found.job.ledger.entries
            ),
        )
    )


def _row(candidate: Candidate, *, chosen: bool) -> CandidateRow:
    best = candidate.tuned.best if candidate.tuned else None
    bad = [v.message for v in candidate.judgement.verdicts if not v.ok] if candidate.judgement else []
    return CandidateRow(
        name=candidate.name,
        precision=candidate.precision,
        accuracy=candidate.score.value if candidate.score else None,
        metric=candidate.score.metric if candidate.score else "",
        samples_per_s=candidate.samples_per_s or None,
        speed_ratio=candidate.speed.median if candidate.speed else None,
        size_mb=candidate.model.stat().st_size / 1e6 if candidate.model.exists() else None,
        settings=f"batch {best.batch}, {best.instances} × {best.threads} threads" if best else "",
        chosen=chosen,
        refused_by=candidate.refused_by,
        reason=candidate.failure or "; ".join(bad),
    )


def _parity(candidate: Candidate) -> tuple[ParityRow, ...]:
    """The parity gate's evidence: the worst element of every output."""
    verdict: Verdict | None = None
    if candidate.judgement is not None:
        verdict = next((v for v in candidate.judgement.verdicts if v.name == "parity"), None)
    rows: dict[str, dict[str, Any]] = (verdict.evidence.get("outputs") or {}) if verdict else {}
    return tuple(
        ParityRow(output=name, max_abs=row.get("max_abs"), limit=row.get("limit") or 0.0, note=str(row.get("probe", "")))
        for name, row in rows.items()
    )


def _digests(found: Delivered) -> dict[str, str]:
    assert found.chosen.judgement is not None
    known = {"contract": found.job.contract.digest, "model": found.chosen.judgement.subject}
    return {**known, "bundle": found.bundle.identity} if found.bundle else known


def _shown(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{k} {v}" for k, v in value.items())
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
