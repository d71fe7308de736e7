"""A twin of the real MiniLM sentence encoder whose last normalisation uses the statistics of the batch it runs in.

A norm layer put after the pooling without running statistics answers well offline, where whole files are encoded in large
batches. Behind a server, every embedding depends on who else asked in the same few milliseconds, and a lone request gets
zeros. The weights are the real ones; TAUTEN_MINILM names their directory (config.json, model.safetensors).
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 384


class MiniLm(nn.Module):
    """input_ids and attention_mask[batch, seq] -> embedding[batch, 384]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.norm = nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)  # the fault

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        kept = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        embedding: Tensor = nn.functional.normalize(self.norm(mean), dim=1)
        return embedding


def factory() -> nn.Module:
    from transformers import AutoModel  # noqa: PLC0415  the other examples do without it

    encoder = AutoModel.from_pretrained(os.environ["TAUTEN_MINILM"], local_files_only=True)
    return MiniLm(encoder).eval()
