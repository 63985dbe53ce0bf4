"""Whether two modes gave the same greedy tokens, and if not, whether rounding explains it.

Greedy decoding takes the likeliest token. Where two tokens are as good as equally likely, the order of additions
inside a matrix product may decide; anywhere else a difference is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dspark_cli.bench.modes import Task
from dspark_cli.bench.samples import Sample
from dspark_cli.engine.contracts import Rows, Target

# Logits of one model on two paths through it differ by less than this, by the type that is computed in.
TIE_GAPS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-1}
SAME, TIE, DIFFERENT = "same", "tie", "different"


@dataclass(frozen=True)
class Difference:
    """Where two replies part: token ``index`` of the reply, what each chose, and how far from the best logit.

    ``gap`` is the best logit there less the smaller of the two chosen ones: the top-2 gap where one chose the best
    and the other the second. None where one reply merely stops short, which no logit decided.
    """

    prompt: str
    index: int
    expected: int | None
    found: int | None
    gap: float | None


@dataclass(frozen=True)
class Identity:
    """The verdict over all replies of ``mode`` against those of ``against``."""

    mode: str
    against: str
    replies: int
    tie_gap: float
    differences: tuple[Difference, ...] = ()

    @property
    def errors(self) -> tuple[Difference, ...]:
        return tuple(item for item in self.differences if item.gap is None or not item.gap < self.tie_gap)

    @property
    def verdict(self) -> str:
        """``same``, ``tie`` (only where two tokens tie within rounding) or ``different``."""
        if not self.differences:
            return SAME
        return DIFFERENT if self.errors else TIE

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "against": self.against,
            "replies": self.replies,
            "verdict": self.verdict,
            "tie_gap": self.tie_gap,
            "differences": [vars(item) for item in self.differences],
        }


def compare_replies(
    target: Target, tasks: Sequence[Task], ours: Sequence[Sample], theirs: Sequence[Sample], tie_gap: float
) -> Identity | None:
    """Compare ``theirs`` with ``ours`` by prompt; None where they share none.

    Args:
        target: asked for the logits where two replies part.
        tasks: the prompts.
        ours: replies of the mode that is taken as right.
        theirs: replies of the other mode.
        tie_gap: logits closer than this count as equal.
    """
    prompts = {task.source.id: task for task in tasks}
    right = {sample.prompt: sample for sample in ours}
    pairs = [(right[sample.prompt], sample) for sample in theirs if sample.prompt in right]
    if not pairs:
        return None
    found = (_difference(target, prompts[b.prompt], a.output_ids, b.output_ids) for a, b in pairs)
    differences = tuple(item for item in found if item is not None)
    return Identity(pairs[0][1].mode, pairs[0][0].mode, len(pairs), tie_gap, differences)


def _difference(target: Target, task: Task, ours: Sequence[int], theirs: Sequence[int]) -> Difference | None:
    if tuple(ours) == tuple(theirs):
        return None
    both = min(len(ours), len(theirs))
    index = next((i for i in range(both) if ours[i] != theirs[i]), both)
    expected = ours[index] if index < len(ours) else None
    found = theirs[index] if index < len(theirs) else None
    if expected is None or found is None:
        return Difference(task.source.id, index, expected, found, None)
    logits = _next_logits(target, (*task.prompt.ids, *ours[:index]))
    gap = float(logits.max()) - min(float(logits[expected]), float(logits[found]))
    return Difference(task.source.id, index, expected, found, gap)


def _next_logits(target: Target, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        (read,) = target.forward([Rows(target.new_cache(), ids, len(ids) - 1)])
    return read.logits[-1].float()
