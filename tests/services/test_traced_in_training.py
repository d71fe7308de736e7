"""A module traced while it was in training stays random whatever eval() says later: the gates must not let it through."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tauten

CONTRACT = tauten.Contract.parse("""
contract: 1
name: traced
inputs: {x: {dtype: float32, shape: [batch, 4], range: [-1, 1]}}
outputs: {y: {dtype: float32, shape: [batch, 3]}}
axes: {batch: {min: 1, opt: 2, max: 4}}
""")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y


def traced(*, training: bool) -> nn.Module:
    trace: Any = torch.jit.trace  # untyped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated upstream, and people still hand such modules over
        module: nn.Module = trace(Net().train(training), torch.ones(2, 4), check_trace=False)
    return module.eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the framework, while it exports
def test_a_module_traced_in_training_is_refused_and_one_traced_in_eval_is_not() -> None:
    refused = tauten.check(traced(training=True), CONTRACT)
    assert "determinism" in {v.name for v in refused.broken}
    verdict = next(v for v in refused.broken if v.name == "determinism")
    assert "Dropout" in verdict.message + str(verdict.evidence) or "random" in verdict.message
    assert verdict.fix
    assert tauten.check(traced(training=False), CONTRACT).held
