"""Algorithm 1 of the DSpark paper: verify slots in order of survival while each raises expected tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from dspark_cli.engine.contracts import Draft, Intent, Plan, RoundState
from dspark_cli.engine.scheduler.sps_curve import SpsCurve


@dataclass(frozen=True)
class PaperPlan:
    """``lengths[r]`` drafted tokens of reply r are verified; ``theta`` is Θ = τ·SPS(B) there, in tokens per second.

    ``thetas[n]`` is Θ after n admitted slots, one more than were admitted where one was tried in vain.
    """

    lengths: tuple[int, ...]
    theta: float
    thetas: tuple[float, ...]


def plan_lengths(survivals: Sequence[Sequence[float]], curve: SpsCurve, depth: int = 0) -> PaperPlan:
    """Algorithm 1 for all active replies.

    τ is the expected number of tokens, one a reply and the survival of each admitted slot; B the rows of the step.
    A slot is looked at only after all slots of higher survival were admitted, so whether it is admitted depends on
    nothing that is known later than its own draw, and the output distribution stays.

    Args:
        survivals: for each reply the prefix survivals a_1 ≥ a_2 ≥ … of its drafted slots.
        curve: what a step costs.
        depth: rows of cache.
    """
    tau, rows = float(len(survivals)), len(survivals)
    lengths = [0] * rows
    if not rows:
        return PaperPlan((), 0.0, ())
    theta = tau * curve.sps(rows, depth)
    thetas = [theta]
    # Among equal survivals the earlier slot comes first: the admitted slots of a reply are always its first ones.
    order = sorted((-a, slot, reply) for reply, row in enumerate(survivals) for slot, a in enumerate(row))
    for negative, _, reply in order:
        raised = (tau - negative) * curve.sps(rows + 1, depth)
        thetas.append(raised)
        if raised <= theta:
            break
        tau, rows, theta = tau - negative, rows + 1, raised
        lengths[reply] += 1
    return PaperPlan(tuple(lengths), theta, tuple(thetas))


@dataclass(frozen=True)
class Paper:
    """Algorithm 1 as the schedule of one reply. It always drafts: the cost of a draft is no part of Θ."""

    curve: SpsCurve
    name: str = "paper"

    def begin(self, state: RoundState) -> Intent:
        return Intent(min(state.block_size, state.room), state.limit)

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        """Raises ValueError: the draft has no confidences."""
        if draft.confidence is None:
            raise ValueError("Algorithm 1 needs a confidence for each drafted token")
        survival = tuple(accumulate(draft.confidence, mul))
        found = plan_lengths([survival], self.curve, state.position)
        (length,) = found.lengths
        whole = length == len(draft.tokens)
        reason = ("whole-block" if state.room >= state.block_size else state.limit) if whole else "cut-by-gain"
        predicted = self.curve.step_ms(1 + length, state.position)
        return Plan(length, reason, 1.0 + sum(survival[:length]), predicted, found.thetas)
