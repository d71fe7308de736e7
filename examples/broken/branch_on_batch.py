"""A Python branch on the batch size. An exporter refuses it or keeps one side only; the gate `parity` finds the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branching(nn.Module):
    """x[batch, 8] -> y[batch, 4]. A batch of one takes another way than a larger batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 4)
        self.many = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.one(x) if x.shape[0] == 1 else self.many(x)  # the fault
        return y


def factory() -> nn.Module:
    torch.manual_seed(0)
    return Branching().eval()
