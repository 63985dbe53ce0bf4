"""Markov heads: what the token drawn in one slot says about the next one.

The parallel part of a drafter guesses every slot at once, so neighbouring slots may tell different stories. A Markov
head adds to the logits of slot k a low-rank bias that depends on the token before it, x_{k−1} (the anchor for the
first slot). With e = W1[x_{k−1}] and h the slot's hidden row:

* vanilla: W2·e
* gated: W2·(σ(gate[h; e]) ⊙ e)
* rnn: g, c, o = split(joint[s; e; h]), s ← σ(g) ⊙ s + (1 − σ(g)) ⊙ tanh(c), bias W2·tanh(o), with s = 0 at first

Notation: V_draft rows of the draft head, H hidden size, r Markov rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark_cli.engine.layers import read_tensor
from dspark_cli.engine.model_config import DrafterConfig, WeightSource
from dspark_cli.errors import CheckpointError

Biased = tuple[Tensor, Tensor, Tensor | None]


class MarkovHead(Protocol):
    """One head; the state of a block is handed back and forth, so that a head itself never changes."""

    def first_state(self) -> Tensor | None:
        """The state before slot 1; None for heads without memory."""

    def add(self, logits: Tensor, previous: int, hidden: Tensor, state: Tensor | None) -> Biased:
        """Add the bias of one slot, from the token before it and its ``hidden`` row [H], to its ``logits`` [V_draft].

        Returns the new logits [V_draft], the embedding e [r] of ``previous``, the next state.
        """


@dataclass(frozen=True)
class VanillaHead:
    """Bias W2·e. ``w1`` [V, r], ``w2`` [V_draft, r]."""

    w1: Tensor
    w2: Tensor

    def first_state(self) -> Tensor | None:
        return None

    def add(self, logits: Tensor, previous: int, hidden: Tensor, state: Tensor | None) -> Biased:
        embedding = self.w1[previous]
        return torch.addmv(logits, self.w2, embedding), embedding, None


@dataclass(frozen=True)
class GatedHead:
    """Bias W2·(σ(gate[h; e]) ⊙ e). ``gate`` [r, H+r], ``gate_bias`` [r]."""

    w1: Tensor
    w2: Tensor
    gate: Tensor
    gate_bias: Tensor

    def first_state(self) -> Tensor | None:
        return None

    def add(self, logits: Tensor, previous: int, hidden: Tensor, state: Tensor | None) -> Biased:
        embedding = self.w1[previous]
        opened = torch.sigmoid(F.linear(torch.cat((hidden, embedding)), self.gate, self.gate_bias))
        return torch.addmv(logits, self.w2, opened * embedding), embedding, None


@dataclass(frozen=True)
class RnnHead:
    """A recurrent cell of width r that runs along the block. ``joint`` [3r, 2r+H], ``joint_bias`` [3r]."""

    w1: Tensor
    w2: Tensor
    joint: Tensor
    joint_bias: Tensor

    def first_state(self) -> Tensor | None:
        return torch.zeros_like(self.w1[0])

    def add(self, logits: Tensor, previous: int, hidden: Tensor, state: Tensor | None) -> Biased:
        if state is None:
            raise ValueError("the rnn head needs the state that first_state() or the slot before returned")
        embedding = self.w1[previous]
        mixed = F.linear(torch.cat((state, embedding, hidden)), self.joint, self.joint_bias)
        gate, candidate, output = mixed.chunk(3)
        # lerp(a, b, g) = a + g·(b − a): g keeps the old state, 1 − g takes the candidate.
        state = torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))
        return torch.addmv(logits, self.w2, torch.tanh(output)), embedding, state


def open_markov_head(
    config: DrafterConfig, weights: WeightSource, device: torch.device | str, dtype: torch.dtype
) -> MarkovHead | None:
    """The head that ``config`` names, its weights read from ``weights``; None for rank 0.

    Raises CheckpointError where the head is of an unknown kind, or a tensor is missing or has another shape.
    """
    if config.markov_rank == 0 or config.head == "none":
        return None
    rank, hidden = config.markov_rank, config.layer.hidden_size

    def read(name: str, *shape: int) -> Tensor:
        return read_tensor(weights, f"markov_head.{name}", shape).to(device=device, dtype=dtype).contiguous()

    w1 = read("markov_w1.weight", config.vocab_size, rank)
    w2 = read("markov_w2.weight", config.draft_vocab_size, rank)
    if config.head == "vanilla":
        return VanillaHead(w1, w2)
    if config.head == "gated":
        return GatedHead(w1, w2, read("gate_proj.weight", rank, hidden + rank), read("gate_proj.bias", rank))
    if config.head == "rnn":
        width = 2 * rank + hidden
        return RnnHead(w1, w2, read("joint_proj.weight", 3 * rank, width), read("joint_proj.bias", 3 * rank))
    raise CheckpointError(
        f"the drafter has a Markov head of the unknown kind '{config.head}'", "vanilla, gated and rnn heads can be run"
    )
