"""What a drafter is taught: 0.1·CE + 0.9·‖p_d − p_t‖₁ + 1.0·BCE of the confidence against 1 − ½‖p_d − p_t‖₁.

p_d is the drafter's distribution over the draft vocabulary, p_t the target's over its own: what p_t holds outside the
draft vocabulary counts in full, and an id outside it has no CE. Slot k of a block has the weight exp(−(k−1)/d); the
loss is the weighted mean over all valid slots.

Rows of logits are wide, so loss and gradient are made together, a few rows at a time that stay in the processor's
cache, and no more than one pass of logits ever exists.

Notation: n slots, P law rows, H hidden size, r Markov rank, V target vocabulary, V_draft draft vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dspark_cli.training.anchor_blocks import AnchorBatch
from dspark_cli.training.draft_model import BlockRows, DraftModel

_CHUNK_ELEMENTS = 1 << 17
_LOGIT_ROWS = 1024


@dataclass(frozen=True)
class LossWeights:
    """``decay`` is d in exp(−(k−1)/d); γ in the paper."""

    cross_entropy: float = 0.1
    distance: float = 0.9
    confidence: float = 1.0
    decay: float = 4.0

    def of_slots(self, block_size: int) -> Tensor:
        """[γ]"""
        return torch.tensor([math.exp(-slot / self.decay) for slot in range(block_size)])


@dataclass(frozen=True)
class TargetLaw:
    """What the target says on P positions.

    ``probabilities`` [P, V_draft] of the draft vocabulary; they sum to less than 1 where some mass lies outside.
    """

    probabilities: Tensor

    def outside(self) -> Tensor:
        """The mass outside the draft vocabulary, [P]."""
        return (1 - self.probabilities.sum(1)).clamp_(min=0)


@dataclass(frozen=True)
class LossParts:
    """``total`` to go back from; the rest detached.

    ``cross_entropy``, ``distance`` (‖p_d − p_t‖₁) and ``confidence`` (BCE) are weighted means; ``acceptance`` [A, γ]
    is 1 − ½‖p_d − p_t‖₁ of each slot, 0 where the slot is not valid, and ``slots`` [γ] its means over valid ones.
    """

    total: Tensor
    cross_entropy: float
    distance: float
    confidence: float
    acceptance: Tensor
    slots: tuple[float, ...]


def target_law(last: Tensor, log_mass: Tensor, norm: Tensor, eps: float, head: Tensor) -> TargetLaw:
    """The law of the draft vocabulary from the final layer's output ``last`` [P, H].

    ``norm`` [H] and ``head`` [V_draft, H] are the target's; ``log_mass`` [P] is the log-sum-exp over all of V.
    """
    normed = functional.rms_norm(last, (last.shape[1],), norm, eps)
    logits = functional.linear(normed.to(head.dtype), head).float()
    return TargetLaw(logits.sub_(log_mass.unsqueeze(1)).exp_())


def draft_loss(
    model: DraftModel, rows: BlockRows, batch: AnchorBatch, law: TargetLaw, draft_of: Tensor, weights: LossWeights
) -> LossParts:
    """The loss of the slots ``rows`` of ``batch``.

    ``draft_of`` [V] maps target ids to draft ids, −1 outside the draft vocabulary.
    """
    weight = batch.valid * weights.of_slots(batch.valid.shape[1])
    weight = (weight / weight.sum()).view(-1)
    w2 = None if model.markov_head is None else model.markov_head.markov_w2.weight
    slots = SlotTargets(law.probabilities, law.outside(), batch.law_rows.view(-1), draft_of[batch.tokens.view(-1)])
    hyper = (weights.cross_entropy, weights.distance, model.compute)
    dtype = rows.hidden.dtype
    loss, entropy, distance = _SlotLoss.apply(rows.hidden, rows.inner, w2, model.head, slots, weight.to(dtype), *hyper)  # type: ignore[no-untyped-call]
    acceptance = (1 - 0.5 * distance).clamp(0, 1)
    confidence = 0.0
    if rows.confidence is not None:
        bce = functional.binary_cross_entropy_with_logits(rows.confidence, acceptance, reduction="none")
        bce = (bce * weight).sum()
        loss = loss + weights.confidence * bce
        confidence = float(bce.detach())
    by_slot = (acceptance * batch.valid.view(-1)).view(batch.valid.shape)
    means = by_slot.sum(0) / batch.valid.sum(0).clamp(min=1)
    return LossParts(
        loss,
        float(entropy @ weight.to(dtype)),
        float(distance @ weight.to(dtype)),
        confidence,
        by_slot,
        tuple(means.tolist()),
    )


def slot_logits(model: DraftModel, rows: BlockRows) -> Tensor:
    """Logits [A·γ, V_draft] of every slot, Markov bias included."""
    logits = functional.linear(rows.hidden.to(model.compute), model.head.to(model.compute))
    if rows.inner is None or model.markov_head is None:
        return logits
    w2 = model.markov_head.markov_w2.weight
    return logits + functional.linear(rows.inner.to(model.compute), w2.to(model.compute))


@torch.no_grad()
def greedy_match(model: DraftModel, rows: BlockRows, batch: AnchorBatch, draft_of: Tensor) -> Tensor:
    """Whether the drafter's likeliest id is the true one, [A, γ]."""
    return slot_logits(model, rows).argmax(1).view(batch.tokens.shape) == draft_of[batch.tokens]


@dataclass(frozen=True)
class SlotTargets:
    """``probabilities`` [P, V_draft], ``outside`` [P]; ``rows`` [n] of them, ``tokens`` [n] draft ids or −1."""

    probabilities: Tensor
    outside: Tensor
    rows: Tensor
    tokens: Tensor


class _SlotLoss(torch.autograd.Function):
    """Weighted sum of α·CE + β·‖p_d − p_t‖₁ over slots whose logits are hidden·headᵀ + inner·W2ᵀ.

    Also returns CE and ‖·‖₁ of each slot [n], which carry no gradient. The gradients of hidden, inner and W2 are made
    in the forward pass, where the logits are at hand. Of the logits z: α·(p_d − onehot) + β·p_d ⊙ (s − Σ p_d s) with
    s = sign(p_d − p_t).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, inner: Tensor | None, w2: Tensor | None, head: Tensor, slots: SlotTargets,
        weight: Tensor, alpha: float, beta: float, compute: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        count, width = hidden.shape
        if inner is None or w2 is None:
            joined, matrix = hidden.to(compute), head.to(compute)
        else:
            joined = torch.cat((hidden.to(compute), inner.to(compute)), 1)
            matrix = torch.cat((head.to(compute), w2.to(compute)), 1)
        entropy, distance = torch.empty_like(weight), torch.empty_like(weight)
        by_rows = torch.empty_like(joined)
        by_w2 = None if w2 is None else torch.zeros_like(w2)
        work = _Workspace(head.shape[0], weight.dtype)
        for first in range(0, count, _LOGIT_ROWS):
            part = slice(first, min(first + _LOGIT_ROWS, count))
            logits = joined[part] @ matrix.T
            for start in range(part.start, part.stop, work.rows):
                few = slice(start, min(start + work.rows, part.stop))
                here = logits[few.start - first : few.stop - first]
                work.run(here, slots, few, weight[few], alpha, beta, entropy[few], distance[few])
            by_rows[part] = logits @ matrix
            if by_w2 is not None:
                by_w2 += logits.T @ joined[part, width:]
        ctx.save_for_backward(by_rows, by_w2)
        ctx.width, ctx.types = width, (hidden.dtype, None if inner is None else inner.dtype)
        ctx.mark_non_differentiable(entropy, distance)
        return (alpha * entropy + beta * distance) @ weight, entropy, distance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_rows, by_w2 = ctx.saved_tensors
        by_hidden = by_rows[:, : ctx.width].to(ctx.types[0]) * grad
        by_inner = None if ctx.types[1] is None else by_rows[:, ctx.width :].to(ctx.types[1]) * grad
        return by_hidden, by_inner, None if by_w2 is None else by_w2 * grad, *(None,) * 6


class _Workspace:
    """Buffers for a few rows of logits, small enough for the processor's cache."""

    def __init__(self, vocabulary: int, dtype: torch.dtype) -> None:
        self.rows = max(1, _CHUNK_ELEMENTS // vocabulary)
        self._law, self._sign = (torch.empty(self.rows, vocabulary, dtype=dtype) for _ in range(2))

    def run(
        self, logits: Tensor, slots: SlotTargets, few: slice, weight: Tensor, alpha: float, beta: float,
        entropy: Tensor, distance: Tensor,
    ) -> None:  # fmt: skip
        """Replace ``logits`` by the gradient of the weighted loss; fill ``entropy`` and ``distance``."""
        count = logits.shape[0]
        drafted = torch.softmax(logits, -1, dtype=weight.dtype)
        tokens, rows = slots.tokens[few], slots.rows[few]
        inside = tokens >= 0
        at = tokens.clamp(min=0).unsqueeze(1)
        chosen = drafted.gather(1, at).squeeze(1)
        entropy.copy_(torch.where(inside, -chosen.clamp_min(1e-30).log(), 0.0))
        law, sign = self._law[:count], self._sign[:count]
        torch.index_select(slots.probabilities, 0, rows, out=law)
        torch.sub(drafted, law, out=law)
        torch.sign(law, out=sign)
        # Σ|x| as x·sign(x): here a product is several times faster than a norm.
        torch.add(torch.linalg.vecdot(law, sign), slots.outside[rows], out=distance)
        pull = alpha * weight * inside
        push = beta * weight
        along = torch.linalg.vecdot(drafted, sign)
        torch.mul(sign, push.unsqueeze(1), out=law)
        law.add_((pull - push * along).unsqueeze(1)).mul_(drafted)
        law.scatter_add_(1, at, -pull.unsqueeze(1))
        logits.copy_(law)
