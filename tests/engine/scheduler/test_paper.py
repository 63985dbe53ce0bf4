"""Algorithm 1 against every vector of lengths there is."""

from __future__ import annotations

from itertools import accumulate, product
from operator import mul
from random import Random

import pytest

from dspark_cli.engine.contracts import Draft, RoundState
from dspark_cli.engine.scheduler.paper import Paper, plan_lengths
from dspark_cli.engine.scheduler.sps_curve import SpsCurve

BLOCK = 3


def small_case(random: Random) -> tuple[list[list[float]], int]:
    replies = random.randint(1, 4)
    chances = [
        [random.choice((random.random(), 0.5, 1.0)) for _ in range(random.randint(0, BLOCK))] for _ in range(replies)
    ]
    return [list(accumulate(row, mul)) for row in chances], replies


def convex_curve(random: Random, rows: int) -> SpsCurve:
    steps = sorted(random.choice((0.0, random.expovariate(0.5))) for _ in range(rows - 1))
    return SpsCurve.flat(list(accumulate(steps, initial=random.uniform(1, 20))), 1.0)


def rough_curve(random: Random, rows: int) -> SpsCurve:
    return SpsCurve.flat([random.uniform(5, 15) + 2 * (row // 3) for row in range(rows)], 1.0)


def theta(survivals: list[list[float]], lengths: tuple[int, ...], curve: SpsCurve) -> float:
    tokens = len(survivals) + sum(sum(row[:length]) for row, length in zip(survivals, lengths, strict=True))
    return tokens * curve.sps(len(survivals) + sum(lengths))


def best_theta(survivals: list[list[float]], curve: SpsCurve) -> float:
    return max(theta(survivals, lengths, curve) for lengths in product(*(range(len(row) + 1) for row in survivals)))


@pytest.mark.parametrize("seed", range(5))
def test_it_equals_brute_force_on_convex_curves(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        survivals, replies = small_case(random)
        curve = convex_curve(random, replies * (1 + BLOCK))
        found = plan_lengths(survivals, curve)
        assert found.theta == pytest.approx(best_theta(survivals, curve), rel=1e-12)
        assert found.theta == pytest.approx(theta(survivals, found.lengths, curve), rel=1e-12)


def test_it_never_exceeds_brute_force_elsewhere_and_does_fall_short() -> None:
    random = Random(7)
    short = 0
    for _ in range(200):
        survivals, replies = small_case(random)
        curve = rough_curve(random, replies * (1 + BLOCK))
        found, best = plan_lengths(survivals, curve), best_theta(survivals, curve)
        assert found.theta <= best * (1 + 1e-12)
        assert found.theta == pytest.approx(theta(survivals, found.lengths, curve), rel=1e-12)
        short += found.theta < best * 0.999
    assert short > 20


def test_a_stair_is_a_wall() -> None:
    survivals = [list(accumulate([0.97] * 7, mul))]
    assert plan_lengths(survivals, SpsCurve.flat((10,) * 4 + (16,) * 4, 1.5)).lengths == (3,)


def test_no_reply() -> None:
    assert plan_lengths([], SpsCurve.flat((1.0,), 1.0)).lengths == ()


def test_as_a_schedule() -> None:
    schedule = Paper(SpsCurve.flat((10.0, 12.0, 14.0, 16.0), 1.0))
    state = RoundState(3, 0, 3, "token-limit")
    assert schedule.begin(state).slots == 3
    plan = schedule.plan(state, Draft((1, 2, 3), confidence=(0.9, 0.1, 0.9)))
    assert (plan.planned, plan.reason, plan.predicted_ms) == (1, "cut-by-gain", 12.0)
    assert plan.expected_tokens == pytest.approx(1.9)
    assert plan.theta == pytest.approx((100.0, 1.9 / 12 * 1e3, 1.99 / 14 * 1e3))
    assert schedule.plan(state, Draft((1, 2, 3), confidence=(0.9, 0.9, 0.9))).reason == "whole-block"
    short = RoundState(3, 0, 2, "context-limit")
    assert schedule.plan(short, Draft((1, 2), confidence=(0.9, 0.9))).reason == "context-limit"
