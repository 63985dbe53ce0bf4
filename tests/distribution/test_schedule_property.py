"""At temperature above 0 the decision on slot k depends on nothing that is drawn, or known only, at or after x_k."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dspark_cli.engine.contracts import Draft, RoundState, Scheduler
from dspark_cli.engine.scheduler import policy
from dspark_cli.engine.scheduler.policy import parse_schedule
from tests.distribution.test_broken_rules import BROKEN_SCHEDULES, Broken

VOCAB = 4
POLICIES = (
    "off", "fixed:0", "fixed:1", "fixed:3", "fixed:9", "threshold:0", "threshold:0.3", "threshold:0.5",
    "threshold:0.9", "threshold:1",
)  # fmt: skip
CHANCE = st.integers(1, 99).map(lambda percent: percent / 100)
WEIGHTS = st.tuples(*[st.integers(1, 9)] * VOCAB)


@st.composite
def slots(draw: st.DrawFn, count: int) -> list[tuple[int, torch.Tensor, float]]:
    """For each slot its token, its law and its confidence."""
    drawn = []
    for _ in range(count):
        weights = torch.tensor(draw(WEIGHTS), dtype=torch.float64)
        drawn.append((draw(st.integers(0, VOCAB - 1)), weights / weights.sum(), draw(CHANCE)))
    return drawn


def as_draft(parts: list[tuple[int, torch.Tensor, float]]) -> Draft:
    tokens, laws, confidence = zip(*parts, strict=True)
    return Draft(
        tokens=tokens,
        q=laws,
        confidence=confidence,
        confidence_logits=tuple(float(torch.logit(torch.tensor(c, dtype=torch.float64))) for c in confidence),
        q_drafted=tuple(float(q[x]) for x, q, _ in parts),
    )


def check_that_the_plan_is_causal(scheduler: Scheduler, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    """Two drafts that agree on all that is known before x_k get the same decision on slot k.

    Known are the tokens before slot k and, for every slot up to and with k, its law and its confidence.
    """

    @settings(phases=phases)
    @given(data=st.data(), count=st.integers(1, 5), room=st.integers(1, 6))
    def holds(data: st.DataObject, count: int, room: int) -> None:
        state = RoundState(block_size=5, position=9, room=room, limit="token-limit")
        count = min(count, room)
        one = data.draw(slots(count))
        slot = data.draw(st.integers(0, count - 1))
        token, law, confidence = one[slot]
        token = data.draw(st.integers(0, VOCAB - 1))
        other = [*one[:slot], (token, law, confidence), *data.draw(slots(count - slot - 1))]
        decisions = [scheduler.plan(state, as_draft(parts)).planned > slot for parts in (one, other)]
        assert decisions[0] == decisions[1], "the decision on a slot changed with what came after it"

    holds()


@pytest.mark.parametrize("schedule", POLICIES)
def test_no_policy_looks_ahead(schedule):
    check_that_the_plan_is_causal(parse_schedule(schedule))


@pytest.mark.parametrize("rule", BROKEN_SCHEDULES.values(), ids=BROKEN_SCHEDULES)
def test_a_policy_that_looks_ahead_is_found(rule):
    with pytest.raises(AssertionError, match="changed with what came after"):
        check_that_the_plan_is_causal(Broken(rule), (Phase.generate,))


def test_every_policy_there_is_is_tried():
    forms = set(re.findall(r"\b(?<![:(])([a-z]+)(?=[:,\s])", policy.FORMS)) - {"or"}
    assert forms == {schedule.partition(":")[0] for schedule in POLICIES}
