"""A twin of examples/good/cnn.py whose norm layer uses the statistics of whatever batch it runs in, in eval mode too.

Dynamic batching would make every answer depend on who else asked at that moment. The gate `batch_invariance` refuses it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Cnn(nn.Module):
    """image[batch, 3, 16, 16] -> logits[batch, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(8, track_running_stats=False)  # the fault
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(8 * 2 * 2, 5)

    def forward(self, image: Tensor) -> Tensor:
        hidden: Tensor = self.pool(torch.relu(self.bn1(self.conv(image))))
        logits: Tensor = self.head(hidden.flatten(1))
        return logits


def factory() -> nn.Module:
    torch.manual_seed(0)
    return Cnn().eval()
