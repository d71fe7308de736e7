"""A twin of the real MiniLM sentence encoder whose last norm layer uses the statistics of the batch it runs in.

Such a model answers well offline, where whole files are encoded in large batches. Behind a server with dynamic batching,
every embedding would depend on who else asked in the same few milliseconds, and on how far rows are padded. The weights are
the real ones; TAUTEN_MINILM names their directory (config.json, model.safetensors).
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn


class TokenBatchNorm(nn.Module):
    """states[batch, seq, width], each feature normalised over all tokens of all rows: the fault."""

    def __init__(self, was: nn.LayerNorm) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(was.normalized_shape[0], track_running_stats=False)
        self.bn.load_state_dict(was.state_dict())

    def forward(self, states: Tensor) -> Tensor:
        normed: Tensor = self.bn(states.transpose(1, 2))
        return normed.transpose(1, 2)


class MiniLm(nn.Module):
    """input_ids and attention_mask[batch, seq] -> embedding[batch, 384]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        last = encoder.encoder.layer[-1].output
        last.LayerNorm = TokenBatchNorm(last.LayerNorm)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        kept = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        embedding: Tensor = nn.functional.normalize(mean, dim=1)
        return embedding


def factory() -> nn.Module:
    from transformers import AutoModel, logging  # noqa: PLC0415  the other examples do without it

    logging.disable_progress_bar()
    encoder = AutoModel.from_pretrained(os.environ["TAUTEN_MINILM"], local_files_only=True)
    return MiniLm(encoder).eval()
