"""The confidence head: how likely each drafted token is to be accepted, given that all earlier ones were.

The logit of slot k is proj[h_k; W1[x_{k−1}]], or proj[h_k] without the Markov part, so it is known before x_k is
drawn. Calibration divides the logit of slot k by a temperature of its own (sequential temperature scaling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark_cli.engine.layers import read_tensor
from dspark_cli.engine.model_config import DrafterConfig, WeightSource
from dspark_cli.errors import CheckpointError


@dataclass(frozen=True)
class ConfidenceHead:
    """``weight`` [1, H+r] with the Markov part, else [1, H]; ``bias`` [1]."""

    weight: Tensor
    bias: Tensor
    with_markov: bool

    def logits(self, hidden: Tensor, embeddings: Tensor | None) -> Tensor:
        """Raw logits [n] of n slots, from their ``hidden`` rows [n, H] and W1[x_{k−1}], ``embeddings`` [n, r]."""
        if self.with_markov:
            if embeddings is None:
                raise ValueError("this confidence head reads the embedding of the token before each slot")
            hidden = torch.cat((hidden, embeddings), dim=1)
        return F.linear(hidden, self.weight, self.bias).squeeze(1)


def open_confidence_head(
    config: DrafterConfig, weights: WeightSource, device: torch.device | str, dtype: torch.dtype
) -> ConfidenceHead | None:
    """The head that ``config`` promises, read from ``weights``; None where it promises none.

    Raises CheckpointError where it wants Markov embeddings of a drafter that has none, or a tensor does not fit.
    """
    if not config.confidence_head:
        return None
    if config.confidence_with_markov and (config.markov_rank == 0 or config.head == "none"):
        raise CheckpointError(
            "the drafter's confidence head reads Markov embeddings, but the drafter has no Markov head",
            "set confidence_head_with_markov to false in its config.json if that is a mistake",
        )
    width = config.layer.hidden_size + (config.markov_rank if config.confidence_with_markov else 0)
    weight = read_tensor(weights, "confidence_head.proj.weight", (1, width))
    bias = read_tensor(weights, "confidence_head.proj.bias", (1,))
    return ConfidenceHead(
        weight.to(device=device, dtype=dtype), bias.to(device=device, dtype=dtype), config.confidence_with_markov
    )


def calibrated(logits: tuple[float, ...], temperatures: tuple[float, ...] | None) -> tuple[float, ...]:
    """Acceptance probabilities of slots 1 … n: σ(logit / temperature), the identity calibration for None."""
    if temperatures is None:
        return tuple(_sigmoid(logit) for logit in logits)
    return tuple(_sigmoid(logit / heat) for logit, heat in zip(logits, temperatures[: len(logits)], strict=True))


def _sigmoid(x: float) -> float:
    """σ(x) in double precision, for any finite x."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    grown = math.exp(x)
    return grown / (1.0 + grown)
