"""The contract: read strictly, with messages that name the key, the place and the nearest known key."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from tauten.spec.contract import Contract, Tolerance
from tauten.spec.errors import BadContract

LEAST = """
contract: 1
inputs:  {x: {dtype: float32, shape: [batch, 4]}}
outputs: {y: {dtype: float32, shape: [batch, 2]}}
"""


def data(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "contract": 1,
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch", 2]}},
        "axes": {"batch": {"max": 8}},
    }
    return base | changes


def refusal(text: str) -> BadContract:
    with pytest.raises(BadContract) as caught:
        Contract.parse(text, where="c.yaml")
    assert caught.value.fix
    return caught.value


def test_three_keys_are_enough_and_the_rest_has_defaults() -> None:
    contract = Contract.parse(LEAST)
    assert contract.name == "model"
    assert contract.target.precision == ("float32",)
    assert contract.tolerances.parity == Tolerance(atol=1e-5, rtol=1e-4)
    assert contract.tolerances.determinism == "exact"
    assert contract.slo is None


@pytest.mark.parametrize("missing", ["contract", "inputs", "outputs"])
def test_each_required_key_is_missed(missing: str) -> None:
    with pytest.raises(BadContract, match=f"key '{missing}' is missing"):
        Contract.of({k: v for k, v in data().items() if k != missing})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tolerance: {}", "unknown key 'tolerance'; did you mean 'tolerances'?"),
        ("slo: {rate: 5, p99ms: 3}", "unknown key 'p99ms' at slo; did you mean 'p99_ms'?"),
        ("zzzzzz: 1", "unknown key 'zzzzzz'"),
        ("slo: {p99_ms: 3}", "key 'rate' is missing at slo"),
        ("slo: {rate: fast}", "expected `float`, got `str` at slo.rate"),
        ("target: {opset: 20.5}", "at target.opset"),
        ("tolerances: {determinism: roughly}", "at tolerances.determinism"),
        ("waivers: [{gate: fusion, reason: r, until: someday}]", "at waivers[0].until"),
    ],
)
def test_a_wrong_key_or_type_is_named_with_its_place(line: str, message: str) -> None:
    told = refusal(LEAST + line)
    assert message in told.message
    assert told.message.startswith("c.yaml: ")
    assert "schema" in told.fix


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../up"}, "name '../up' must be letters"),
        ({"name": ""}, "name '' must be"),
        ({"inputs": {}}, "inputs is empty"),
        ({"inputs": {"x": {"dtype": "flaot32", "shape": ["batch"]}}}, "dtype 'flaot32' is not known; did you mean 'float32'?"),
        ({"inputs": {"x": {"dtype": "int8", "shape": ["batch", -1]}}}, "has a negative size; name the axis instead"),
        ({"tolerances": {"parity": {"atol": -1}}}, "tolerances.parity must not be negative"),
        ({"tolerances": {"determinism": {"rtol": float("nan")}}}, "tolerances.determinism must not be negative"),
        ({"slo": {"rate": 0}}, "slo.rate is 0, must be greater than 0"),
        ({"slo": {"rate": 5, "p99_ms": -3}}, "slo.p99_ms is -3, must be a finite number of 0 or more"),
        ({"slo": {"rate": float("inf")}}, "slo.rate is inf, must be"),
        ({"memory": {"peak_mb": float("nan")}}, "memory.peak_mb is nan, must be"),
        ({"accuracy": {"data": "d.tsv", "metric": "spearman", "max_drop": -0.1}}, "accuracy.max_drop is -0.1, must be"),
        ({"axes": {"batch": {"min": 0, "max": 8}}}, "axes.batch: min is 0, but a request has at least one row"),
        ({"privacy": {"private": ["patient"]}}, "names 'patient', which is neither an input nor an output"),
        ({"axes": {"batch": {"min": 9, "max": 8}}}, "axes.batch: min 9 is greater than max 8"),
        ({"axes": {"batch": {"max": 8}, "sequence": {"max": 3}}}, "axes.sequence is bounded but no input or output"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadContract) as caught:
        Contract.of(data(**changes))
    assert message in caught.value.message
    assert caught.value.fix


def test_numbers_as_people_write_them() -> None:
    contract = Contract.parse(LEAST + "tolerances: {parity: {atol: 1e-5, rtol: 2E-4}, batch: {atol: 1}, layers: {atol: .5}}")
    assert contract.tolerances.parity == Tolerance(atol=1e-5, rtol=2e-4)
    assert contract.tolerances.batch.atol == 1.0
    assert contract.tolerances.layers.atol == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contract: [1", "c.yaml is not valid YAML"),
        ("- 1\n- 2", "c.yaml holds list, expected a mapping"),
        ("", "c.yaml holds NoneType, expected a mapping"),
        (LEAST + "contract: 1", "key 'contract' is given twice"),
        (LEAST + "slo: {rate: 1, rate: 2}", "key 'rate' is given twice"),
        ("[" * 5000, "c.yaml is nested too deeply"),
        ("? [a]\n: 1", "a key must be a plain value"),
        ("contract: " + "9" * 5000, "c.yaml is not valid YAML: Exceeds the limit"),
        (LEAST + "waivers: [{gate: fusion, reason: r, until: 2027-13-01}]", "c.yaml is not valid YAML: month must be"),
        (LEAST + "name: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_text_that_is_no_contract(text: str, message: str) -> None:
    assert message in refusal(text).message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for path, reason in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path / "latin.yaml", "not UTF-8"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(BadContract, match=reason) as caught:
            Contract.load(path)
        assert str(path) in caught.value.message


def test_what_is_dumped_is_read_back_equal(tmp_path: Path) -> None:
    contract = Contract.parse(
        LEAST + "axes: {batch: {min: 1, opt: 2, max: 8}}\ntolerances: {determinism: {atol: 1e-7}}\n"
        "slo: {rate: 50, p99_ms: 60}\nwaivers: [{gate: fusion, reason: kept, until: 2027-03-01}]\nprivacy: {private: [x]}"
    )
    path = tmp_path / "contract.yaml"
    path.write_text(contract.dumps(), encoding="utf-8")
    again = Contract.load(path)
    assert again == contract
    assert again.waivers[0].until == datetime.date(2027, 3, 1)
    assert "shape: [batch, 4]" in contract.dumps()


def test_the_digest_is_of_what_is_said_and_not_of_how() -> None:
    plain = Contract.parse(LEAST)
    turned = "\n".join(reversed(LEAST.strip().splitlines())) + "  # a comment"
    assert Contract.parse(turned).digest == plain.digest
    assert plain.digest.startswith("sha256:")
    assert Contract.parse(LEAST + "name: other").digest != plain.digest
    assert Contract.parse(LEAST + "tolerances: {batch: {atol: 1.1e-5}}").digest != plain.digest


def test_the_signature_is_part_of_it() -> None:
    contract = Contract.of(data())
    assert contract.signature.batchable
    assert contract.signature.inputs == contract.inputs
    assert contract.signature.axes["batch"].max == 8


def test_the_schema_names_every_key() -> None:
    schema = Contract.schema()
    whole = schema["$defs"]["Contract"]
    assert set(whole["required"]) == {"contract", "inputs", "outputs"}
    assert whole["additionalProperties"] is False
    assert {"slo", "tolerances", "waivers", "axes"} <= set(whole["properties"])


def test_a_contract_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Contract.of(data()).name = "other"  # type: ignore[misc]
