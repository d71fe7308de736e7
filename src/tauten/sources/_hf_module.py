"""The module around a Hugging Face encoder: in a file of its own, so that a fresh process can import it."""

from __future__ import annotations

import torch

POOLED, TOKENS = "embedding", "last_hidden_state"  # what the output is called


class Encoder(torch.nn.Module):
    """Token ids and mask in; token states, or their mean over the mask, out.

    input_ids, attention_mask  int64 [batch, seq]
    returns                    float32 [batch, seq, hidden], pooled [batch, hidden]; a row with no tokens pools to zeros
    """

    def __init__(self, encoder: torch.nn.Module, *, pooled: bool, normalised: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooled, self.normalised = pooled, normalised

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        states: torch.Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        if not self.pooled:
            return {TOKENS: states}
        kept = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * kept).sum(1) / kept.sum(1).clamp(min=1e-9)  # the divisor's floor is that of sentence-transformers
        return {POOLED: torch.nn.functional.normalize(mean, p=2.0, dim=1) if self.normalised else mean}
