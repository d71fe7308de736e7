"""A bare squeeze() that means one axis and drops the batch axis too when it is 1. The gate `axes` refuses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Squeezing(nn.Module):
    """x[batch, 3, 8] -> y[batch, 4]; a batch of one gives y[4], which a server would cut along the wrong axis."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x).mean(1, keepdim=True).squeeze()  # the fault: squeeze(1) is meant
        return y


def factory() -> nn.Module:
    torch.manual_seed(0)
    return Squeezing().eval()
