"""Wires the offline line: a source, a contract, its labelled data and a report in; verdicts or a sealed bundle out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tauten.delivery import line
from tauten.delivery.candidates import Candidate
from tauten.delivery.evaluate import TextEncoder
from tauten.delivery.evaluate import prepare as prepare_evaluation
from tauten.delivery.files import free_place, write_whole, writing
from tauten.delivery.first_contract import first_contract
from tauten.delivery.ledger import Ledger, Progress
from tauten.delivery.origin import open_source
from tauten.delivery.original import reference_of
from tauten.formats import onnx_file
from tauten.reports import html
from tauten.reports.build import build_report
from tauten.spec import plugins
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.errors import BadContract
from tauten.spec.source import Opened
from tauten.spec.verdict import Judgement


class Delivery:
    """One source under one contract, ready to be checked or delivered."""

    def __init__(self, job: line.Job) -> None:
        self._job = job

    @property
    def contract(self) -> Contract:
        return self._job.contract

    def check(self) -> Candidate:
        """Runs every gate; see `delivery.line.check`."""
        return line.check(self._job)

    def deliver(self, target: Path, *, version: str = "1", only: str = "") -> line.Delivered:
        """Builds and seals; see `delivery.line.deliver`."""
        html.require_jinja()
        return line.deliver(self._job, target, version=version, only=only, report=build_report)

    def write_report(self, target: str | Path, judged: Candidate) -> None:
        """The HTML report of a check."""
        found = line.Delivered(job=self._job, chosen=judged, candidates=(judged,))
        write_whole(Path(target), build_report(found).encode())

    def write_model(self, judged: Candidate, target: Path) -> None:
        """Puts the judged ONNX file at its place, with its external data where it has some. Raises BadUsage."""
        with writing(target):
            onnx_file.copy(judged.model, target)


@contextmanager
def prepare(
    given: object,
    contract: Contract,
    *,
    data_root: Path | None = None,
    example_inputs: object = None,
    progress: Progress | None = None,
) -> Iterator[Delivery]:
    """Opens the source and the contract's data. Relative data paths start at `data_root`, by default the working folder."""
    ledger = Ledger(progress)
    with ledger.step("open the source"):
        opened = open_source(given, example_inputs)
    evaluation = prepare_evaluation(contract, data_root or Path(), _encoder(opened, contract))
    with line.scratch_folder() as work:
        yield Delivery(line.Job(contract=contract, opened=opened, ledger=ledger, work=work, evaluation=evaluation))


def _encoder(opened: Opened, contract: Contract) -> TextEncoder | None:
    """The text processor of the source, needed where the contract's data is text."""
    if opened.processor is None or contract.accuracy is None:
        return None
    encoder: TextEncoder = plugins.load("processors", "text").open(opened.processor, contract.signature)
    return encoder


def first(given: object, *, name: str = "", options: dict[str, Any] | None = None) -> Contract:
    """A first contract for a model, its SLO measured on this host."""
    opened = open_source(given)
    try:
        with reference_of(opened, None) as run:
            return first_contract(opened, run, name=name, options=options)
    except BadContract as error:
        raise BadContract(f"no first contract could be written: {error.message}", fix=error.fix) from error


def check(given: object, contract: Contract, *, example_inputs: object = None, data_root: Path | None = None) -> Judgement:
    """Runs every gate on a model: an nn.Module, a path or a `file.py:factory`. Returns the verdicts, held or not."""
    with prepare(given, contract, data_root=data_root, example_inputs=example_inputs) as delivery:
        judged = delivery.check()
    assert judged.judgement is not None
    return judged.judgement


def deliver(
    given: object, contract: Contract, out: str | Path, *, example_inputs: object = None, data_root: Path | None = None
) -> Bundle:
    """Builds the sealed bundle `out/<name>-<version>`. Raises NotHeld with the verdicts; then nothing is written."""
    target = Path(out) / f"{contract.name}-1"
    free_place(target)
    with prepare(given, contract, data_root=data_root, example_inputs=example_inputs) as delivery:
        found = delivery.deliver(target)
    assert found.bundle is not None
    return found.bundle
