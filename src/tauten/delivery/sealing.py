"""Puts everything a delivery found out into the directory that becomes the bundle."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tauten.delivery.candidates import Candidate
from tauten.delivery.ledger import Ledger
from tauten.formats import onnx_file
from tauten.measure import host
from tauten.spec import plugins
from tauten.spec.bundle import SCHEMA, Bundle, Manifest, Variant, seal
from tauten.spec.contract import Contract
from tauten.spec.engine import Engine, Runner
from tauten.spec.golden import write_probes
from tauten.spec.judging import Probe
from tauten.spec.source import Opened

GOLDEN = 12  # probes kept: enough kinds to notice a change, few enough to run at every start


@dataclass(frozen=True)
class Parcel:
    """What goes into one bundle. `reference` answers the golden probes in the original framework, `delivered` as served."""

    contract: Contract
    opened: Opened
    chosen: Candidate
    candidates: Sequence[Candidate]
    probes: Sequence[Probe]
    reference: Runner
    delivered: Runner
    ledger: Ledger
    version: str
    report: str = ""


def seal_parcel(parcel: Parcel, target: Path) -> Bundle:
    """Writes the bundle, whole or not at all. Raises AlreadyExists."""
    return seal(target, lambda root: _fill(root, parcel))


def _fill(root: Path, parcel: Parcel) -> Manifest:
    contract, chosen = parcel.contract, parcel.chosen
    assert chosen.tuned is not None
    assert chosen.judgement is not None
    name = f"{chosen.name}-{contract.target.engine}"
    folder = root / "variants" / name
    folder.mkdir(parents=True)
    onnx_file.copy(chosen.model, folder / "model.onnx")
    (folder / "settings.json").write_bytes(msgspec.json.format(msgspec.json.encode(chosen.tuned.settings)))
    (root / "contract.yaml").write_text(contract.dumps(), encoding="utf-8")
    golden = golden_probes(parcel.probes)
    write_probes(root / "golden" / "inputs.npz", {p.name: p.inputs for p in golden})
    write_probes(root / "golden" / "outputs.npz", {p.name: parcel.reference(p.inputs) for p in golden})
    write_probes(folder / "answers.npz", {p.name: parcel.delivered(p.inputs) for p in golden})
    processor = _copy_processor(root, parcel.opened)
    _write_evidence(root / "evidence", parcel)
    engine: Engine = plugins.load("engines", contract.target.engine)
    return Manifest(
        schema=SCHEMA,
        name=contract.name,
        version=parcel.version,
        signature=contract.signature,
        variants={
            name: Variant(
                precision=chosen.precision,
                engine=contract.target.engine,
                path=f"variants/{name}/model.onnx",
                settings=f"variants/{name}/settings.json",
            )
        },
        default=name,
        contract=contract.digest,
        provenance={**parcel.opened.provenance, "source": parcel.opened.kind, "made_by": chosen.made_by},
        requirements={"engine": f"{contract.target.engine} {engine.version()}", "python": platform.python_version()},
        files={},
        processor=processor,
    )


def golden_probes(probes: Sequence[Probe]) -> list[Probe]:
    """The smallest probes of every kind, evenly over the kinds, at most GOLDEN."""
    by_kind: dict[str, list[Probe]] = {}
    for probe in sorted(probes, key=lambda p: (sum(v.size for v in p.inputs.values()), p.name)):
        by_kind.setdefault(probe.kind, []).append(probe)
    rounds = [group[i] for i in range(GOLDEN) for group in by_kind.values() if i < len(group)]
    return rounds[:GOLDEN]


def _copy_processor(root: Path, opened: Opened) -> str | None:
    """The files natural input needs. The kind of processor is text where there is a tokenizer."""
    if opened.processor is None:
        return None
    folder = root / "processors"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (opened.processor / name).is_file():
            shutil.copyfile(opened.processor / name, folder / name)
    return "text"


def _write_evidence(folder: Path, parcel: Parcel) -> None:
    folder.mkdir()
    assert parcel.chosen.judgement is not None
    (folder / "verdicts.json").write_bytes(msgspec.json.format(parcel.chosen.judgement.to_json()))
    rows = [candidate_row(c, chosen=c.name == parcel.chosen.name) for c in parcel.candidates]
    (folder / "tuning.json").write_bytes(msgspec.json.format(msgspec.json.encode({"host": host.facts(), "candidates": rows})))
    parcel.ledger.write(folder / "ledger.jsonl")
    if parcel.report:
        (folder / "report.html").write_text(parcel.report, encoding="utf-8")


def candidate_row(candidate: Candidate, *, chosen: bool) -> dict[str, Any]:
    """A candidate as plain data: what it reached and why it was refused, without any path."""
    speed, tuned = candidate.speed, candidate.tuned
    bad = [v for v in candidate.judgement.verdicts if not v.ok] if candidate.judgement else []
    return {
        "name": candidate.name,
        "precision": candidate.precision,
        "made_by": candidate.made_by,
        "parent": candidate.parent,
        "chosen": chosen,
        "bytes": candidate.model.stat().st_size if candidate.model.exists() else None,
        "score": candidate.score
        and {"metric": candidate.score.metric, "value": candidate.score.value, "n": candidate.score.samples},
        "samples_per_s": candidate.samples_per_s or None,
        "speed": speed and {"ratios": speed.ratios, "conditions": speed.label},
        "settings": tuned and tuned.settings,
        "trials": tuned.trials if tuned else (),
        "refused_by": candidate.refused_by,
        "reason": candidate.failure or "; ".join(v.message for v in bad),
    }
