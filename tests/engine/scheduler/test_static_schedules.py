"""Static schedules: what they verify, how they say why, what text they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.contracts import Draft, RoundState
from dspark_cli.engine.scheduler.policy import parse_schedule
from dspark_cli.errors import UsageError


def draft(*confidence: float) -> Draft:
    return Draft(tuple(range(len(confidence))), confidence=confidence)


@pytest.mark.parametrize(
    ("text", "room", "slots", "reason"),
    [
        ("off", 9, 0, "off"),
        ("fixed:3", 9, 3, "fixed"),
        ("fixed:7", 9, 7, "whole-block"),
        ("fixed:99", 9, 7, "whole-block"),
        ("fixed:0", 9, 0, "fixed"),
        ("fixed:5", 2, 2, "token-limit"),
        ("fixed:5", 0, 0, "token-limit"),
        ("threshold:0.5", 9, 7, "whole-block"),
        ("threshold:0.5", 4, 4, "token-limit"),
    ],
)
def test_slots_and_reasons(text: str, room: int, slots: int, reason: str) -> None:
    scheduler = parse_schedule(text, has_confidence=True)
    state = RoundState(7, 10, room, "token-limit")
    intent = scheduler.begin(state)
    assert intent.slots == slots
    if not slots:
        assert intent.reason == reason
        return
    plan = scheduler.plan(state, draft(*[0.9] * slots))
    assert (plan.planned, plan.reason) == (slots, reason)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0, 1))
def test_a_threshold_cuts_before_the_first_confidence_below_it(confidence: list[float], threshold: float) -> None:
    scheduler = parse_schedule(f"threshold:{threshold!r}")
    plan = scheduler.plan(RoundState(7, 0, 7, "token-limit"), draft(*confidence))
    assert all(value >= threshold for value in confidence[: plan.planned])
    assert plan.planned == len(confidence) or confidence[plan.planned] < threshold


@pytest.mark.parametrize(
    "text", ["", "auto:3", "fixed", "fixed:", "fixed:-1", "fixed:2.5", "threshold:1.1", "threshold:nan", "threshold:x"]
)
def test_other_texts_are_usage_errors_that_name_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"fixed:N.*threshold:P"):
        parse_schedule(text)


def test_a_threshold_needs_a_confidence_head() -> None:
    with pytest.raises(UsageError, match="confidence head"):
        parse_schedule("threshold:0.5", has_confidence=False)
