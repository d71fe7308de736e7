"""Accuracy on labelled data, against scipy and by hand."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from tauten.delivery.evaluate import in_batches, prepare, spearman
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import BadContract
from tauten.spec.tensors import Array


def contract(data: str, metric: str) -> Contract:
    return Contract.of({
        "contract": 1,
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 2]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch", 2]}},
        "axes": {"batch": {"min": 1, "opt": 3, "max": 4}},
        "accuracy": {"data": data, "metric": metric},
    })  # fmt: skip


def identity(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


class Letters:
    """Embeds a text by its first and last letter."""

    def encode_texts(self, texts: list[str]) -> dict[str, Array]:
        return {"x": np.array([[ord(t[0]), ord(t[-1])] for t in texts], np.float32)}


@given(arrays(np.int64, st.integers(3, 40), elements=st.integers(0, 9)), st.randoms())
def test_spearman_agrees_with_scipy_also_with_ties(a: Array, random: object) -> None:
    b = a.copy()
    np.random.default_rng(len(a)).shuffle(b)
    got = spearman(a, b)
    if len(set(a)) == 1:
        assert np.isnan(got)
    else:
        assert got == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.tsv", "# a comment\nfirst\tsecond\tscore\nab\tab\t10\nab\tza\t1\nab\tac\t9\n"),
        ("p.csv", "ab,ab,10\nab,za,1\nab,ac,9\n"),
        ("p.jsonl", '{"a":"ab","b":"ab","s":10}\n{"a":"ab","b":"za","s":1}\n{"a":"ab","b":"ac","s":9}\n'),
    ],
)
def test_pairs_are_read_from_every_kind_of_table(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    evaluate = prepare(contract(name, "spearman"), tmp_path, Letters())
    assert evaluate is not None
    score = evaluate(identity)
    assert score.samples == 3
    assert score.value == pytest.approx(1.0)


def test_pairs_from_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": ["ab", "ab", "ab"], "b": ["ab", "za", "ac"], "score": [1.0, 10.0, 2.0]})
    parquet.write_table(table, tmp_path / "p.parquet")
    evaluate = prepare(contract("p.parquet", "spearman"), tmp_path, Letters())
    assert evaluate is not None
    assert evaluate(identity).value == pytest.approx(-1.0)


def test_top1(tmp_path: Path) -> None:
    x = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]], np.float32)
    np.savez(tmp_path / "d.npz", x=x, label=np.array([0, 1, 0, 1, 1]))
    evaluate = prepare(contract("d.npz", "accuracy"), tmp_path, None)
    assert evaluate is not None
    assert evaluate(identity).value == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "text", "metric", "says"),
    [
        ("p.tsv", "a\tb\n", "spearman", "2 columns"),
        ("p.tsv", "a\tb\t1\na\tb\tx\n", "spearman", "row 2"),
        ("p.tsv", "a\tb\t1\n", "spearman", "1 scored pairs"),
        ("p.xls", "", "spearman", "'.xls'"),
        ("p.tsv", "a\tb\t1\n", "f1", "'f1'"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, name: str, text: str, metric: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadContract, match=says):
        prepare(contract(name, metric), tmp_path, Letters())


def test_missing_data_and_missing_arrays(tmp_path: Path) -> None:
    with pytest.raises(BadContract, match="not a file"):
        prepare(contract("none.tsv", "spearman"), tmp_path, Letters())
    np.savez(tmp_path / "d.npz", x=np.zeros((1, 2), np.float32))
    with pytest.raises(BadContract, match="'label'"):
        prepare(contract("d.npz", "accuracy"), tmp_path, None)
    (tmp_path / "p.tsv").write_text("a\tb\t1\nc\td\t2\n")
    with pytest.raises(BadContract, match="tokenizer"):
        prepare(contract("p.tsv", "spearman"), tmp_path, None)


def test_rows_keep_their_order_over_batches() -> None:
    seen: list[int] = []

    def run(inputs: Tensors) -> dict[str, Array]:
        seen.append(len(inputs["x"]))
        return identity(inputs)

    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    got = in_batches(run, {"x": x}, contract("x", "accuracy"))
    assert np.array_equal(got["y"], x)
    assert seen == [3, 3, 3, 1]
