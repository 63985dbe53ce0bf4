"""What became of the drafted slots of many rounds: confidences beside acceptance, for calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspark_cli.engine.contracts import Draft, Sampling
from dspark_cli.engine.loading import LoadedPair
from dspark_cli.engine.round import RoundResult
from dspark_cli.engine.scheduler.fixed import Fixed
from dspark_cli.training.prompt_synthesis import ReplyPool


@dataclass(frozen=True)
class Observations:
    """A row a round, a column a slot; float64, NaN where a slot was not judged.

    ``logits`` [n, γ] are the raw confidence logits; ``survived`` [n, γ] is 1 where all slots up to this one were
    accepted, else 0; ``chance`` [n, γ] is the chance of that, given the context and the tokens drafted before the
    slot: the same as ``survived`` for greedy replies, and for drawn ones Π min(1, p/q) of the earlier tokens times
    Σ min(p, q) of the slot, which is its mean with less noise. ``prompts`` counts the prompts replied to.
    """

    logits: Tensor
    survived: Tensor
    chance: Tensor
    prompts: int

    @property
    def rounds(self) -> int:
        return len(self.logits)


@dataclass(frozen=True)
class RolloutPlan:
    """How much is rolled out: ``rounds`` or a few more, replies of at most ``tokens``, ``parallel`` at a time."""

    sampling: Sampling
    rounds: int
    tokens: int = 128
    parallel: int = 16


def observe(
    pair: LoadedPair, prompts: Iterator[tuple[int, tuple[int, ...]]], plan: RolloutPlan, passed: Callable[[int], None]
) -> Observations:
    """Reply to ``prompts`` (number, ids) with whole blocks until there are enough rounds or no prompts.

    The number of a prompt goes into the seed of its reply. ``passed`` is told how many rounds there are.
    """
    drafter = pair.drafter
    assert drafter is not None
    pool = ReplyPool(pair, drafter, Fixed(drafter.block_size), detail=1)
    rows: list[Tensor] = []
    used, dry = 0, False
    while len(rows) < plan.rounds:
        while not dry and len(pool) < plan.parallel:
            prompt = next(prompts, None)
            dry = prompt is None
            if prompt is not None:
                used += 1
                number, ids = prompt
                sampling = replace(plan.sampling, seed=(plan.sampling.seed << 64) + number)
                pool.add([(number, ids, sampling, plan.tokens)])
        if not len(pool):
            break
        pool.step()
        rows += [_row(result, drafter.block_size, pair.stop_ids) for _, result in pool.results if result.draft.tokens]
        passed(len(rows))
    data = torch.stack(rows) if rows else torch.empty((0, 3, drafter.block_size), dtype=torch.float64)
    logits, survived, chance = data.unbind(1)
    return Observations(logits, survived, chance, used)


def _row(result: RoundResult, block_size: int, stop_ids: AbstractSet[int]) -> Tensor:
    """Logits, survival and its chance of one round, [3, γ]."""
    row = torch.full((3, block_size), math.nan, dtype=torch.float64)
    judged = _judged(result.draft.tokens[: result.plan.planned], stop_ids)
    if not judged:
        return row
    assert result.draft.confidence_logits is not None
    row[0, :judged] = torch.tensor(result.draft.confidence_logits[:judged], dtype=torch.float64)
    row[1, :judged] = (torch.arange(judged) < result.verdict.accepted).double()
    row[2, :judged] = row[1, :judged] if result.draft.q is None else _chances(result.draft, result.rows, judged)
    return row


def _judged(drafted: tuple[int, ...], stop_ids: AbstractSet[int]) -> int:
    """How many slots count: none after a drafted stop id, whose acceptance would end the block."""
    return next((slot + 1 for slot, token in enumerate(drafted) if token in stop_ids), len(drafted))


def _chances(draft: Draft, p: Tensor | None, judged: int) -> Tensor:
    """Chance that the slots up to each of the first ``judged`` are accepted, [judged].

    ``p`` [≥ judged, V] are the target's distributions, each given the tokens drafted before it.
    """
    assert draft.q is not None
    assert p is not None
    p, q = p[:judged].double(), torch.stack(draft.q[:judged]).double()
    drafted = torch.tensor(draft.tokens[:judged], device=p.device).unsqueeze(1)
    accepted = (p.gather(1, drafted) / q.gather(1, drafted)).clamp(max=1.0).squeeze(1)
    before = torch.cat((accepted.new_ones(1), accepted[:-1])).cumprod(0)
    return (before * torch.minimum(p, q).sum(1)).cpu()
