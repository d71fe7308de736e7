"""A forecaster on tables over time: a GRU whose length is dynamic, with a scale that clients may leave out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """series[batch, time, 4] and scale[batch, 1] -> forecast[batch, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 12, batch_first=True)
        self.head = nn.Linear(12, 2)

    def forward(self, series: Tensor, scale: Tensor) -> Tensor:
        states, _ = self.gru(series)
        forecast: Tensor = self.head(states[:, -1]) * scale
        return forecast


def factory() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent().eval()
