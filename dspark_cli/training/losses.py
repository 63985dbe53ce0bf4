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
    """``decay`` is d in exp(−(k−1)/d); γ in the paper.

    ``soft`` weighs −Σ p_t log p_d over the draft vocabulary, which is not in the paper: unlike the distance it pulls
    on ids that the drafter thinks impossible, unlike CE on all of them at once, and so is good to begin with.
    """

    cross_entropy: float = 0.1
    distance: float = 0.9
    confidence: float = 1.0
    soft: float = 0.0
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


class LawMaker:
    """Makes the target's law of the draft vocabulary.

    Args:
        norm: the target's norm [H] before its head, with ``eps``.
        head: the target's head rows [V_draft, H] of the draft vocabulary.
        compute: the type of the product.
    """

    def __init__(self, norm: Tensor, eps: float, head: Tensor, compute: torch.dtype) -> None:
        self._norm, self._eps, self._compute = norm, eps, compute
        self._head = joined_columns(head, head.new_ones(len(head), 2), dtype=compute)

    @property
    def device(self) -> torch.device:
        return self._head.device

    def __call__(self, last: Tensor, log_mass: Tensor) -> TargetLaw:
        """From the final layer's output ``last`` [P, H] and the log-sum-exp over all of V, ``log_mass`` [P]."""
        return TargetLaw(self.logits(last, log_mass).exp_())

    def logits(self, last: Tensor, level: Tensor) -> Tensor:
        """Logits [P, V_draft] less ``level`` [P]."""
        normed = functional.rms_norm(last, (last.shape[1],), self._norm, self._eps)
        rows = joined_columns(normed, split_in_two(-level, self._compute), dtype=self._compute)
        return (rows @ self._head.T).to(normed.dtype)

    def logits_at(self, last: Tensor, ids: Tensor) -> Tensor:
        """The logit [P] of one of ``ids`` [P] in each row."""
        normed = functional.rms_norm(last, (last.shape[1],), self._norm, self._eps)
        at: Tensor = torch.linalg.vecdot(normed, self._head[ids, : last.shape[1]].to(normed.dtype))
        return at


def split_in_two(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Two columns [n, 2] that sum to ``values`` [n] more exactly than one of ``dtype`` could.

    Added to a product inside of it, where sums are exact, they keep its results small and so their rounding, too:
    a logit of 20 less a log-sum-exp of 21 has in bfloat16 an error of 0.002 in place of 0.06.
    """
    coarse = values.to(dtype).to(values.dtype)
    return torch.stack((coarse, values - coarse), 1)


def joined_columns(*parts: Tensor, dtype: torch.dtype) -> Tensor:
    """``parts`` [n, …] side by side in ``dtype``, and zeros up to a multiple of 32 columns."""
    width = sum(part.shape[1] for part in parts)
    out = parts[0].new_zeros((len(parts[0]), -(-width // 32) * 32), dtype=dtype)
    first = 0
    for part in parts:
        out[:, first : first + part.shape[1]] = part
        first += part.shape[1]
    return out


def draft_loss(
    model: DraftModel, rows: BlockRows, batch: AnchorBatch, law: TargetLaw, draft_of: Tensor, weights: LossWeights
) -> LossParts:
    """The loss of the slots ``rows`` of ``batch``.

    ``draft_of`` [V] maps target ids to draft ids, −1 outside the draft vocabulary.
    """
    weight = batch.valid * weights.of_slots(batch.valid.shape[1]).to(batch.valid.device)
    weight = (weight / weight.sum()).view(-1)
    w2 = None if model.markov_head is None else model.markov_head.markov_w2.weight
    rows_of = batch.law_rows.view(-1)
    tokens, level = draft_of[batch.tokens.view(-1)], batch.log_mass[rows_of]
    slots = SlotTargets(law.probabilities, law.outside(), rows_of, tokens, level)
    dtype = rows.hidden.dtype
    weight = weight.to(dtype)
    mix = weights.cross_entropy, weights.distance, weights.soft
    given = rows.hidden, rows.inner, w2, model.head, slots, weight, mix, model.compute
    loss, entropy, distance = _SlotLoss.apply(*given)  # type: ignore[no-untyped-call]
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
        float(entropy @ weight),
        float(distance @ weight),
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
    """``probabilities`` [P, V_draft], ``outside`` [P]; ``rows`` [n] of them, ``tokens`` [n] draft ids or −1.

    ``level`` [n] is about the size of the largest logits: taken off before rounding, it changes no distribution.
    """

    probabilities: Tensor
    outside: Tensor
    rows: Tensor
    tokens: Tensor
    level: Tensor


class _SlotLoss(torch.autograd.Function):
    """Weighted sum over slots of α·CE + β·‖p_d − p_t‖₁ + κ·soft, of logits that are hidden·headᵀ + inner·W2ᵀ.

    ``mix`` is (α, β, κ). Also returns CE and ‖·‖₁ of each slot [n], which carry no gradient. The gradients of hidden,
    inner and W2 are made in the forward pass, where the logits are at hand. Of the logits they are
    α·(p_d − onehot) + β·p_d ⊙ (s − Σ p_d s) + κ·(p_d·Σ p_t − p_t) with s = sign(p_d − p_t).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, inner: Tensor | None, w2: Tensor | None, head: Tensor, slots: SlotTargets,
        weight: Tensor, mix: tuple[float, float, float], compute: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        count, width = hidden.shape
        level, ones = split_in_two(-slots.level, compute), head.new_ones(len(head), 2)
        if inner is None or w2 is None:
            joined = joined_columns(hidden, level, dtype=compute)
            matrix = joined_columns(head, ones, dtype=compute)
        else:
            joined = joined_columns(hidden, inner, level, dtype=compute)
            matrix = joined_columns(head, w2, ones, dtype=compute)
        used = width + (0 if inner is None else inner.shape[1])
        entropy, distance, soft = torch.empty_like(weight), torch.empty_like(weight), torch.zeros_like(weight)
        by_rows = joined.new_empty((count, used))
        by_w2 = None if w2 is None else torch.zeros_like(w2)
        work = _Workspace(head.shape[0], weight)
        for first in range(0, count, _LOGIT_ROWS):
            part = slice(first, min(first + _LOGIT_ROWS, count))
            logits = joined[part] @ matrix.T
            for start in range(part.start, part.stop, work.rows):
                few = slice(start, min(start + work.rows, part.stop))
                here = logits[few.start - first : few.stop - first]
                work.run(here, slots, few, weight[few], mix, entropy[few], distance[few], soft[few])
            torch.mm(logits, matrix[:, :used], out=by_rows[part])
            if by_w2 is not None:
                by_w2 += logits.T @ joined[part, width:used]
        ctx.save_for_backward(by_rows, by_w2)
        ctx.width, ctx.types = width, (hidden.dtype, None if inner is None else inner.dtype)
        ctx.mark_non_differentiable(entropy, distance)
        return (mix[0] * entropy + mix[1] * distance + mix[2] * soft) @ weight, entropy, distance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_rows, by_w2 = ctx.saved_tensors
        by_hidden = by_rows[:, : ctx.width].to(ctx.types[0]) * grad
        by_inner = None if ctx.types[1] is None else by_rows[:, ctx.width :].to(ctx.types[1]) * grad
        return by_hidden, by_inner, None if by_w2 is None else by_w2 * grad, *(None,) * 5


class _Workspace:
    """Buffers for a few rows of logits, small enough for the processor's cache, of the kind of ``like``."""

    def __init__(self, vocabulary: int, like: Tensor) -> None:
        few = max(1, _CHUNK_ELEMENTS // vocabulary)
        self.rows = few if like.device.type == "cpu" else _LOGIT_ROWS
        self._off, self._pull = (like.new_empty((self.rows, vocabulary)) for _ in range(2))

    def run(
        self, logits: Tensor, slots: SlotTargets, few: slice, weight: Tensor, mix: tuple[float, float, float],
        entropy: Tensor, distance: Tensor, soft: Tensor,
    ) -> None:  # fmt: skip
        """Replace ``logits`` by the gradient of the weighted loss; fill ``entropy``, ``distance`` and ``soft``."""
        alpha, beta, kappa = mix
        count = logits.shape[0]
        drafted = torch.softmax(logits, -1, dtype=weight.dtype)
        tokens, rows = slots.tokens[few], slots.rows[few]
        outside = slots.outside[rows]
        inside = tokens >= 0
        at = tokens.clamp(min=0).unsqueeze(1)
        chosen = drafted.gather(1, at).squeeze(1)
        entropy.copy_(torch.where(inside, -chosen.clamp_min(1e-30).log(), 0.0))
        off, pull_of = self._off[:count], self._pull[:count]
        torch.index_select(slots.probabilities, 0, rows, out=off)
        if kappa:
            soft.copy_(_soft_entropy(logits, drafted, off, 1 - outside))
        torch.sub(drafted, off, out=off)
        torch.sign(off, out=pull_of)
        # Σ|x| as x·sign(x): here a product is several times faster than a norm.
        torch.add(torch.linalg.vecdot(off, pull_of), outside, out=distance)
        pull, push = alpha * weight * inside, beta * weight
        all_ids = pull - push * torch.linalg.vecdot(drafted, pull_of) - kappa * weight * outside
        pull_of.mul_(push.unsqueeze(1)).add_(all_ids.unsqueeze(1)).mul_(drafted)
        if kappa:
            pull_of.add_(off.mul_(weight.unsqueeze(1)), alpha=kappa)
        pull_of.scatter_add_(1, at, -pull.unsqueeze(1))
        logits.copy_(pull_of)


def _soft_entropy(logits: Tensor, drafted: Tensor, law: Tensor, inside: Tensor) -> Tensor:
    """−Σ p_t log p_d of each row, with ``inside`` = Σ p_t."""
    best, at = drafted.max(1, keepdim=True)
    logits = logits.to(drafted.dtype)
    log_sum = (logits.gather(1, at) - best.log()).squeeze(1)
    out: Tensor = inside * log_sum - torch.linalg.vecdot(law, logits)
    return out
