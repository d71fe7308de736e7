"""F.dropout without `training=self.training`: its default is True, so eval() does not reach it. `determinism` refuses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LiveDropout(nn.Module):
    """x[batch, 8] -> y[batch, 4], another one at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(functional.dropout(torch.relu(self.body(x)), 0.5))  # the fault
        return y


def factory() -> nn.Module:
    torch.manual_seed(0)
    return LiveDropout().eval()
