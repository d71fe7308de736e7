"""The choice of settings and of the variant is pure: it is tried on invented figures."""

from pathlib import Path

import pytest

from tauten.delivery.candidates import Candidate, choose
from tauten.delivery.tune import Trial, Tuned, batches, settings_for, throughput
from tauten.delivery.tune import choose as choose_trial
from tauten.spec.contract import Contract, Slo
from tauten.spec.engine import Tensors
from tauten.spec.judging import Speed
from tauten.spec.tensors import Array
from tauten.spec.verdict import Judgement, Status, Verdict


def contract(**extra: object) -> Contract:
    base = {
        "contract": 1,
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch", 2]}},
        "axes": {"batch": {"min": 1, "opt": 8, "max": 32}},
    }
    return Contract.of({**base, **extra})


def trial(batch: int, rate: float, ms: float, *, threads: int = 2, instances: int = 1) -> Trial:
    return Trial(threads=threads, instances=instances, batch=batch, samples_per_s=rate, run_ms=ms)


def test_the_fastest_configuration_wins() -> None:
    trials = [trial(1, 200, 5), trial(8, 300, 26), trial(32, 390, 82)]
    assert choose_trial(trials, None).batch == 32


def test_a_larger_batch_must_bring_something() -> None:
    trials = [trial(1, 34, 29), trial(8, 38, 210), trial(32, 38.5, 830)]
    assert choose_trial(trials, None).batch == 8


def test_what_serving_a_run_costs_speaks_for_a_batch() -> None:
    assert choose_trial([trial(1, 800, 2.5), trial(8, 780, 20)], None).batch == 8
    assert choose_trial([trial(1, 80, 25), trial(8, 78, 200)], None).batch == 1


def test_one_row_alone_must_be_quick_enough_for_the_promise() -> None:
    two_cores = [trial(1, 200, 5), trial(8, 300, 26)]
    one_core_each = [trial(1, 240, 8, threads=1, instances=2), trial(8, 400, 40, threads=1, instances=2)]
    assert choose_trial([*two_cores, *one_core_each], None).instances == 2
    assert choose_trial([*two_cores, *one_core_each], Slo(rate=1, p50_ms=12)).instances == 1


def test_where_nothing_is_quick_enough_the_quickest_row_wins() -> None:
    trials = [trial(1, 10, 100), trial(1, 12, 160, threads=1, instances=2)]
    assert choose_trial(trials, Slo(rate=1, p50_ms=1)).threads == 2


@pytest.mark.parametrize(
    ("axis", "expected"),
    [({"min": 1, "opt": 8, "max": 32}, (1, 8, 32)), ({"min": 1, "max": 1}, (1,)), ({"min": 4, "opt": 4, "max": 6}, (4, 6))],
)
def test_batches_stay_inside_the_bounds(axis: dict[str, int], expected: tuple[int, ...]) -> None:
    assert batches(contract(axes={"batch": axis})) == expected


def test_settings_say_what_the_trial_used() -> None:
    settings = settings_for(trial(8, 1, 1, threads=1, instances=2), contract())
    assert (settings.batch, settings.instances, settings.session.threads) == (8, 2, 1)
    assert not settings.session.spinning


def test_throughput_counts_the_rows_of_every_caller() -> None:
    calls: list[int] = []

    def run(inputs: Tensors) -> dict[str, Array]:
        calls.append(1)
        return {}

    rate, ms = throughput([run, run], {}, rows=4, seconds=0.0)
    assert len(calls) == 2 + 2 * 3
    assert rate > 0
    assert ms >= 0


def candidate(name: str, rate: float, status: Status) -> Candidate:
    verdict = Verdict(name="parity", status=status, message="")
    return Candidate(
        name=name,
        precision="float32",
        made_by="x",
        model=Path("x"),
        judgement=Judgement(subject="", contract="", verdicts=(verdict,)),
        tuned=Tuned(settings=settings_for(trial(1, rate, 1), contract()), best=trial(1, rate, 1), trials=()),
        speed=Speed((1.0,), "", rate, rate),
    )


def test_the_fastest_that_holds_is_delivered() -> None:
    field = [candidate("fp32", 100, Status.HELD), candidate("quick", 900, Status.BROKEN), candidate("int8", 300, Status.HELD)]
    chosen, why = choose(field, contract(slo={"rate": 1}))
    assert chosen.name == "int8"
    assert "2" in why
    assert field[1].refused_by == "parity"


def test_with_nothing_to_optimise_for_the_first_that_holds_is_delivered() -> None:
    field = [candidate("fp32", 100, Status.HELD), candidate("int8", 300, Status.HELD)]
    assert choose(field, contract())[0].name == "fp32"


def test_a_candidate_that_could_not_be_made_is_refused_by_its_maker() -> None:
    made = Candidate(name="x", precision="int8", made_by="int8_dynamic", model=Path("x"), failure="already quantised")
    assert not made.held
    assert made.refused_by == "int8_dynamic"
