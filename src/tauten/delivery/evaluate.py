"""Accuracy on labelled data: the table is read once, then every candidate is scored on it in the batches it is served in.

Two shapes of data are understood. A table (.csv, .tsv, .jsonl, .parquet) of text pairs with a human score is scored by
Spearman's rank correlation between that score and the cosine of the two embeddings (Spearman 1904, average ranks for ties).
An archive (.npz) with one array per input and `label` is scored by top-1 accuracy of the first output.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from tauten.spec.contract import Accuracy, Contract
from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import BadContract, MissingExtra
from tauten.spec.judging import Score
from tauten.spec.signature import BATCH
from tauten.spec.tensors import Array

METRICS = ("spearman", "accuracy")
Evaluation = Callable[[Runner], Score]


class TextEncoder(Protocol):
    """What is needed of a text processor: texts in, padded inputs out, one row a text."""

    def encode_texts(self, texts: list[str]) -> dict[str, Array]: ...


def prepare(contract: Contract, root: Path, encoder: TextEncoder | None) -> Evaluation | None:
    """Reads the contract's labelled data; returns what scores a runner on it, or None where the contract names none.

    Relative paths are taken from `root`. Raises BadContract when the file or a column is missing or the metric is unknown.
    """
    accuracy = contract.accuracy
    if accuracy is None:
        return None
    path = root / accuracy.data
    if not path.is_file():
        raise BadContract(f"accuracy.data {accuracy.data!r} is not a file", fix="give a path relative to the contract's folder")
    match accuracy.metric:
        case "spearman":
            return _spearman_on_pairs(_pairs(path), contract, encoder)
        case "accuracy":
            return _top1(path, contract)
        case other:
            raise BadContract(f"accuracy.metric {other!r} is not known", fix=f"use one of {', '.join(METRICS)}")


def _spearman_on_pairs(pairs: list[tuple[str, str, float]], contract: Contract, encoder: TextEncoder | None) -> Evaluation:
    if encoder is None:
        raise BadContract("accuracy.metric 'spearman' needs text, but this model comes without a tokenizer",
                          fix="put tokenizer.json beside the model, or give .npz data with metric 'accuracy'")  # fmt: skip
    texts = sorted({t for a, b, _ in pairs for t in (a, b)})
    encoded = encoder.encode_texts(texts)
    place = {t: i for i, t in enumerate(texts)}
    human = np.array([score for *_, score in pairs])

    def evaluate(run: Runner) -> Score:
        output = next(iter(contract.outputs))
        vectors = in_batches(run, encoded, contract)[output].astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        left, right = [place[a] for a, _, _ in pairs], [place[b] for _, b, _ in pairs]
        cosine = np.sum(vectors[left] * vectors[right], axis=1)
        return Score("spearman", spearman(cosine, human), len(pairs))

    return evaluate


def _top1(path: Path, contract: Contract) -> Evaluation:
    with np.load(path, allow_pickle=False) as archive:
        data = dict(archive)
    if missing := [n for n in (*contract.inputs, "label") if n not in data]:
        raise BadContract(f"{path.name} has no array {missing[0]!r}; it has {', '.join(data)}",
                          fix="store one array per input, and 'label'")  # fmt: skip
    labels = data.pop("label")
    inputs = {name: data[name] for name in contract.inputs}

    def evaluate(run: Runner) -> Score:
        logits = in_batches(run, inputs, contract)[next(iter(contract.outputs))]
        return Score("accuracy", float(np.mean(np.argmax(logits, axis=-1) == labels)), len(labels))

    return evaluate


def spearman(a: Array, b: Array) -> float:
    """Pearson correlation of the ranks, ties at their average rank."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    spread = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / spread) if spread else float("nan")


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def in_batches(run: Runner, inputs: Tensors, contract: Contract) -> dict[str, Array]:
    """Runs all rows in batches of the declared optimum and joins the outputs."""
    axis = contract.axes.get(BATCH)
    step = axis.optimum if axis else 1
    rows = len(next(iter(inputs.values())))
    parts = [run({k: v[i : i + step] for k, v in inputs.items()}) for i in range(0, rows, step)]
    return {name: np.concatenate([p[name] for p in parts]) for name in contract.outputs}


def _pairs(path: Path) -> list[tuple[str, str, float]]:
    """Rows of (text, text, score): the first three columns. A first row whose score is no number is taken as the header."""
    rows = _read(path)
    pairs: list[tuple[str, str, float]] = []
    for number, row in enumerate(rows, 1):
        if len(row) < 3:
            raise BadContract(f"{path.name} row {number} has {len(row)} columns", fix="give two texts and a score a row")
        try:
            pairs.append((str(row[0]), str(row[1]), float(row[2])))
        except ValueError as error:
            if number > 1:
                raise BadContract(f"{path.name} row {number}: score {row[2]!r} is not a number", fix="correct it") from error
    if len(pairs) < 2:
        raise BadContract(f"{path.name} has {len(pairs)} scored pairs", fix="give at least two")
    return pairs


def _read(path: Path) -> Sequence[Sequence[Any]]:
    match path.suffix:
        case ".csv" | ".tsv":
            with path.open(encoding="utf-8", newline="") as file:
                return list(
                    csv.reader(
                        (line for line in file if not line.startswith("#")), delimiter="\t" if path.suffix == ".tsv" else ","
                    )
                )
        case ".jsonl":
            lines = path.read_bytes().splitlines()
            return [list(msgspec.json.decode(line, type=dict[str, Any]).values()) for line in lines if line.strip()]
        case ".parquet":
            try:
                from pyarrow import parquet  # noqa: PLC0415  extra `data`
            except ModuleNotFoundError as error:
                raise MissingExtra("pyarrow", "data", needed_for=f"reading {path.name}") from error
            columns = parquet.read_table(path).to_pydict().values()
            return list(zip(*columns, strict=True))
        case other:
            raise BadContract(f"accuracy.data of kind {other!r} is not known", fix="use .csv, .tsv, .jsonl, .parquet or .npz")


def needed(accuracy: Accuracy | None) -> str:
    """What the accuracy gate is held to, in words, for the terminal."""
    return f"{accuracy.metric}, at most {accuracy.max_drop:g} lost" if accuracy else "not promised"
