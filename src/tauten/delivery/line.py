"""The offline line: the only place that knows in which order things are done. Everything else is a step it calls."""

from __future__ import annotations

import dataclasses
import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tauten.delivery import candidates as field_of
from tauten.delivery.candidates import Candidate, raise_unless_held
from tauten.delivery.evaluate import Evaluation
from tauten.delivery.files import free_place
from tauten.delivery.ledger import Ledger
from tauten.delivery.original import reference_of
from tauten.delivery.probes import make_probes, sample
from tauten.delivery.sealing import Parcel, seal_parcel
from tauten.delivery.subject import Memo, Wish, open_subject
from tauten.delivery.tune import Contestant, Tuned, race, tune
from tauten.measure.host import allowed_cpus
from tauten.spec import plugins
from tauten.spec.bundle import Bundle, sha256
from tauten.spec.contract import Contract, Tolerance
from tauten.spec.engine import EngineSettings, ServingSettings, Tensors
from tauten.spec.errors import BadModel, BadUsage, EngineFailed, ExportFailed, TautenError
from tauten.spec.judging import Gate, Probe, Score, Subject
from tauten.spec.signature import BATCH
from tauten.spec.source import Opened
from tauten.spec.verdict import Judgement, Status, Verdict, waive

# The order of everything. A gate, pass or scheme that is not in a list is not run.
GATES = (
    "lint", "compatibility", "signature", "axes", "parity", "batch_invariance", "padding_invariance", "determinism", "finite",
)  # fmt: skip
VARIANT_GATES = (*GATES, "accuracy", "speed")
MENDS = ("demote_inputs",)  # rewrites that every exported file gets before it is judged
PASSES = ("transformer_fusions",)  # rewrites that compete
SCHEMES = ("int8_dynamic", "int8_dynamic_channel", "int8_rowwise")  # precisions that compete


@dataclass(frozen=True)
class Job:
    """One delivery: what is delivered, under which contract, and where its intermediate files are.

    original  the score of the original framework on the contract's labelled data, once it is known
    """

    contract: Contract
    opened: Opened
    ledger: Ledger
    work: Path
    evaluation: Evaluation | None = None
    original: Score | None = None
    today: datetime.date = field(default_factory=datetime.date.today)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return make_probes(self.contract)


@dataclass(frozen=True)
class Delivered:
    """A finished delivery: what was chosen among what, and the sealed bundle."""

    job: Job
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    bundle: Bundle | None = None


Render = Callable[[Delivered], str]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A directory for intermediate files, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tauten-") as folder:
        yield Path(folder)


def check(job: Job, memo: Memo | None = None) -> Candidate:
    """Exports if need be and runs every gate. Returns the first export that held, or else the one with the fewest refusals.

    Raises ExportFailed when no exporter could produce a file at all.
    """
    memo = memo or Memo()
    tried: list[Candidate] = []
    failures: list[str] = []
    for candidate in _delivered_files(job, failures):
        try:
            judged = _judge(job, candidate, memo)
        except BadModel as error:  # the engine refuses the file
            if job.opened.model is not None:
                raise
            failures.append(f"{candidate.made_by}: {error.message}")
            continue
        if judged.held:
            return judged
        tried.append(judged)
    if not tried:
        raise ExportFailed(
            "no exporter could write this model so that it runs: " + "; ".join(failures),
            fix="see the reasons; change the model",
        )
    return min(tried, key=lambda c: len(c.judgement.broken) if c.judgement else len(GATES))


def deliver(job: Job, target: Path, *, version: str = "1", only: str = "", report: Render | None = None) -> Delivered:
    """The whole line: export, gates, passes, precisions, tuning on this host, gates again, sealed bundle.

    `only` names the candidate to deliver instead of the fastest one that holds. Raises NotHeld or Undecided with the verdicts
    when the model does not keep the contract, AlreadyExists or BadUsage for the target; then nothing is written.
    """
    free_place(target)
    memo = Memo()
    base = check(job, memo)
    raise_unless_held(base)
    job = dataclasses.replace(job, original=_original_score(job))
    memo = memo.parent(job.original)
    base = _with_accuracy(job, _score_and_tune(job, base))
    raise_unless_held(base)
    rivals = [_try_rival(job, base, rival, memo) for rival in _rivals(job, base)]
    if speeds := [r.speed.parent_samples_per_s for r in rivals if r.speed]:
        base = msgspec.structs.replace(base, raced=median(speeds))
    everybody = [base, *rivals]
    chosen, why = _chosen(job, everybody, only)
    with job.ledger.step(f"choose {chosen.name}") as note:
        note.say("kept", why, subject=_digest(chosen.model))
    confirmed = _again(job, chosen, memo)
    raise_unless_held(confirmed)
    found = Delivered(job=job, chosen=confirmed, candidates=tuple(confirmed if c is chosen else c for c in everybody))
    return _seal(found, target, version, report)


def _delivered_files(job: Job, failures: list[str]) -> Iterator[Candidate]:
    """The files to judge, one exporter after the other; a source that is a model file already is the only one."""
    if job.opened.model is not None:
        yield _mended(job, Candidate(name="fp32", precision="float32", made_by=job.opened.kind, model=job.opened.model))
        return
    assert job.opened.export is not None, "bug: a source gives a model file or an exporter"
    for exporter in job.opened.exporters:
        try:
            with job.ledger.step(f"export with {exporter}") as note:
                made = job.opened.export(job.contract, exporter, job.work / exporter / "model.onnx")
                note.say("done", f"opset and names are read back from the file by the gates ({made.seconds:.1f} s)")
                note.subject = _digest(made.path)
        except ExportFailed as error:
            failures.append(f"{exporter}: {error.message}")
            continue
        yield _mended(job, Candidate(name="fp32", precision="float32", made_by=exporter, model=made.path))


def _mended(job: Job, candidate: Candidate) -> Candidate:
    """Rewrites that are no matter of taste, such as weights that a client could overwrite."""
    model = candidate.model
    for name in MENDS:
        target = job.work / candidate.made_by / name / "model.onnx"
        try:
            with job.ledger.step(f"mend with {name}") as note:
                changed = plugins.load("passes", name).apply(model, target, job.contract)
                note.say("done" if changed else "unchanged")
        except BadModel:
            if job.opened.model is None:
                return candidate  # what the exporter wrote is judged as it is: lint says what is wrong with it
            raise
        model = target if changed else model
    return msgspec.structs.replace(candidate, model=model)


def _judge(
    job: Job,
    candidate: Candidate,
    memo: Memo,
    *,
    gates: Sequence[str] = GATES,
    settings: ServingSettings | None = None,
) -> Candidate:
    """Runs the gates on one candidate; the ledger has the outcome and what refused it."""
    scheme = plugins.load("quant", candidate.made_by) if candidate.made_by in SCHEMES else None
    parity: Tolerance = scheme.TOLERANCE if scheme else job.contract.tolerances.parity
    wish = Wish(
        model=candidate.model,
        variant=candidate.name,
        settings=settings.session if settings else EngineSettings(threads=allowed_cpus()),
        parity=parity,
        relative_to_scale=scheme is not None,
        asked_opset=job.contract.target.opset if job.opened.model is None and not candidate.parent else None,
        score=candidate.score,
        speed=candidate.speed,
    )
    with job.ledger.step(f"gates on {candidate.name} ({candidate.made_by})") as note:
        with open_subject(job.contract, job.opened, wish, job.probes, memo) as subject:
            verdicts = [_verdict(name, subject) for name in gates]
        digest = _digest(candidate.model)
        judgement = Judgement(
            subject=digest,
            contract=job.contract.digest,
            verdicts=waive(verdicts, job.contract.waivers, today=job.today),
        )
        bad = "; ".join(f"{v.name}: {v.message}" for v in judgement.verdicts if not v.ok)
        note.say("held" if judgement.held else "refused", bad, subject=digest)
    return msgspec.structs.replace(candidate, judgement=judgement)


def _verdict(name: str, subject: Subject) -> Verdict:
    gate: Gate = plugins.load("gates", name)
    try:
        return gate.judge(subject)
    except EngineFailed as error:
        return Verdict(name=name, status=Status.BROKEN, message=f"the model does not run: {error.message}", fix=error.fix)


def _rivals(job: Job, base: Candidate) -> Iterator[tuple[Candidate, Any]]:
    """What may be tried beside the base: (candidate without a file yet, its precision scheme or None)."""
    if job.contract.accuracy is None and job.contract.slo is None:
        return
    if field_of.allowed(job.contract, "float32"):
        for name in PASSES:
            yield (
                Candidate(name="fp32-fused", precision="float32", made_by=name, model=_rival_file(job, name), parent=base.name),
                None,
            )
    for name in SCHEMES:
        scheme = plugins.load("quant", name)
        if field_of.allowed(job.contract, scheme.PRECISION):
            label = name.replace("_", "-")
            yield (
                Candidate(name=label, precision=scheme.PRECISION, made_by=name, model=_rival_file(job, name), parent=base.name),
                scheme,
            )


def _rival_file(job: Job, name: str) -> Path:
    return job.work / name / "model.onnx"


def _try_rival(job: Job, base: Candidate, rival: tuple[Candidate, Any], memo: Memo) -> Candidate:
    """Makes a rival, measures it, and judges it. A rival that cannot be made is kept with its reason."""
    candidate, scheme = rival
    try:
        with job.ledger.step(f"make {candidate.name}") as note:
            if scheme is None:
                if not plugins.load("passes", candidate.made_by).apply(base.model, candidate.model, job.contract):
                    note.say("unchanged", "nothing to fuse")
                    return msgspec.structs.replace(candidate, failure="changed nothing")
            else:
                scheme.quantise(base.model, candidate.model, job.contract)
            note.subject = _digest(candidate.model)
        candidate = _score_and_tune(job, candidate, base)
    except TautenError as error:
        return msgspec.structs.replace(candidate, failure=error.message)
    return _judge(job, candidate, memo, gates=VARIANT_GATES)


def _score_and_tune(job: Job, candidate: Candidate, base: Candidate | None = None) -> Candidate:
    """Accuracy on the labelled data, the best settings on this host, and the speed against the parent."""
    feed = feeder(job.contract)
    score = None
    if job.evaluation is not None:
        with job.ledger.step(f"accuracy of {candidate.name}") as note, _session(job, candidate) as run:
            score = job.evaluation(run)
            note.say("done", f"{score.metric} {score.value:.4f} on {score.samples}")
    with job.ledger.step(f"tune {candidate.name}") as note:
        tuned: Tuned = tune(candidate.model, job.contract, feed)
        best = tuned.best
        note.say("done", f"batch {best.batch}, {best.instances} × {best.threads} threads: {best.samples_per_s:g} samples/s")
    speed = None
    if base is not None and base.tuned is not None:
        with job.ledger.step(f"race {candidate.name} against {base.name}") as note:
            speed = race(
                Contestant(model=candidate.model, settings=tuned.settings, feed=feed),
                Contestant(model=base.model, settings=base.tuned.settings, feed=feed),
            )
            note.say("done", f"{sorted(speed.ratios)[len(speed.ratios) // 2]:.2f} times as fast ({speed.label})")
    return msgspec.structs.replace(candidate, score=score, tuned=tuned, speed=speed)


@contextmanager
def _session(job: Job, candidate: Candidate) -> Iterator[Callable[[Tensors], dict[str, Any]]]:
    engine = plugins.load("engines", job.contract.target.engine)
    session = engine.open(candidate.model, EngineSettings(threads=allowed_cpus()))
    try:
        yield session.run
    finally:
        session.close()


def feeder(contract: Contract) -> Callable[[int], Tensors]:
    """Makes inputs with a given number of rows at the declared optimum (its bucket) of every other axis."""
    sizes = {name: axis.bucket(axis.optimum) for name, axis in contract.axes.items()}
    return lambda rows: sample(contract, {**sizes, BATCH: rows} if BATCH in sizes else sizes)


def _original_score(job: Job) -> Score | None:
    """What the original framework reaches on the labelled data; every candidate is held against it."""
    if job.evaluation is None:
        return None
    with job.ledger.step("accuracy of the original") as note, reference_of(job.opened, job.contract) as run:
        score = job.evaluation(run)
        note.say("done", f"{score.metric} {score.value:.4f} on {score.samples}")
    return score


def _with_accuracy(job: Job, base: Candidate) -> Candidate:
    """The exported model itself is held to the accuracy clause too, once it has a score."""
    assert base.judgement is not None
    if base.score is None:
        return base
    subject = Subject(
        contract=job.contract, probes=(), delivered=_never, parity=Tolerance(), score=base.score, parent_score=job.original
    )
    verdicts = waive([_verdict("accuracy", subject)], job.contract.waivers, today=job.today)
    whole = msgspec.structs.replace(base.judgement, verdicts=(*base.judgement.verdicts, *verdicts))
    return msgspec.structs.replace(base, judgement=whole)


def _never(_: Tensors) -> dict[str, Any]:
    raise AssertionError("bug: the accuracy gate is handed scores and runs nothing")


def _chosen(job: Job, everybody: Sequence[Candidate], only: str) -> tuple[Candidate, str]:
    if not only:
        return field_of.choose(everybody, job.contract)
    named = next((c for c in everybody if c.name == only), None)
    if named is None:
        raise BadUsage(f"there is no candidate {only!r}", fix=f"use one of {', '.join(c.name for c in everybody)}")
    if named.failure:
        raise BadModel(f"{only} could not be made: {named.failure}", fix="deliver another candidate")
    raise_unless_held(named)
    return named, "asked for by name"


def _again(job: Job, chosen: Candidate, memo: Memo) -> Candidate:
    """The gates once more, under the very settings it will be served with."""
    assert chosen.tuned is not None
    gates = VARIANT_GATES if chosen.parent else (*GATES, "accuracy")
    return _judge(job, chosen, memo, gates=gates, settings=chosen.tuned.settings)


def _seal(found: Delivered, target: Path, version: str, report: Render | None) -> Delivered:
    job = found.job
    with job.ledger.step("seal") as note:
        note.say("done", f"{target.name}", subject=_digest(found.chosen.model))
    with reference_of(job.opened, job.contract) as reference, _session(job, found.chosen) as delivered:
        parcel = Parcel(
            contract=job.contract,
            opened=job.opened,
            chosen=found.chosen,
            candidates=found.candidates,
            probes=job.probes,
            reference=reference,
            delivered=delivered,
            ledger=job.ledger,
            version=version,
            report=report(found) if report else "",
        )
        bundle = seal_parcel(parcel, target)
    return dataclasses.replace(found, bundle=bundle)


def _digest(path: Path) -> str:
    """SHA-256 of a model file, its external data not counted: the bundle's manifest has every file."""
    return f"sha256:{sha256(path)}"
