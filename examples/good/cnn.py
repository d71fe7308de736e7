"""A small image classifier whose BatchNorm has running statistics: in eval mode a row's answer is its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Cnn(nn.Module):
    """image[batch, 3, 16, 16] -> logits[batch, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(8 * 2 * 2, 5)

    def forward(self, image: Tensor) -> Tensor:
        hidden: Tensor = self.pool(torch.relu(self.bn1(self.conv(image))))
        logits: Tensor = self.head(hidden.flatten(1))
        return logits


def factory() -> nn.Module:
    torch.manual_seed(0)
    model = Cnn()
    model.train()
    with torch.no_grad():
        for _ in range(20):  # lets the running statistics settle, as training does
            model(torch.rand(8, 3, 16, 16))
    return model.eval()
