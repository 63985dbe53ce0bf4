"""Intervals against known values, and what they may and may not find."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dspark_cli.bench.statistics import (
    FASTER,
    SLOWER,
    UNSEEN,
    PairedRatio,
    Spread,
    median_ratio,
    paired_ratio,
    share,
    t_quantile,
)

SPEEDS = st.floats(0.1, 1e4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 29, 30, 200])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.975, 0.9995])
def test_t_quantiles_are_those_of_scipy(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12)


def test_t_quantile_refuses_what_is_none() -> None:
    for probability, freedom in ((0.4, 3), (1.0, 3), (0.9, 0)):
        with pytest.raises(ValueError, match="no t quantile"):
            t_quantile(probability, freedom)


def test_interval_is_the_t_interval_of_the_logarithms() -> None:
    pairs = [(2.0, 1.0), (3.0, 1.0), (2.5, 1.1), (4.0, 1.3)]
    logs = [math.log(a / b) for a, b in pairs]
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=sum(logs) / 4, scale=stats.sem(logs))
    found = paired_ratio(pairs)
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx(
        (math.exp(sum(logs) / 4), math.exp(low), math.exp(high))
    )
    assert (found.pairs, found.verdict) == (4, FASTER)


def test_two_and_a_half_cancel() -> None:
    found = paired_ratio([(2.0, 1.0), (1.0, 2.0)])
    assert found is not None
    assert found.ratio == pytest.approx(1.0)
    assert found.verdict == UNSEEN


def test_one_pair_has_no_interval_and_no_verdict() -> None:
    found = paired_ratio([(5.0, 1.0)])
    assert found is not None
    assert (found.ratio, found.low, found.high, found.pairs) == (pytest.approx(5.0), None, None, 1)
    assert PairedRatio(5.0, None, None, 1).verdict == UNSEEN
    assert paired_ratio([]) is None


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_a_ratio_needs_positive_values(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([pair])


@given(st.lists(st.tuples(SPEEDS, SPEEDS), min_size=2, max_size=12))
def test_swapping_the_sides_turns_the_ratio_over(pairs: list[tuple[float, float]]) -> None:
    found, turned = paired_ratio(pairs), paired_ratio((b, a) for a, b in pairs)
    assert found is not None
    assert turned is not None
    assert found.low is not None
    assert turned.high is not None
    assert found.ratio * turned.ratio == pytest.approx(1.0)
    assert found.low * turned.high == pytest.approx(1.0)
    assert {FASTER: SLOWER, SLOWER: FASTER, UNSEEN: UNSEEN}[found.verdict] == turned.verdict


@given(st.lists(st.tuples(SPEEDS, SPEEDS, st.floats(0.01, 100)), min_size=2, max_size=12))
def test_what_slows_both_of_a_pair_changes_nothing(rows: list[tuple[float, float, float]]) -> None:
    found = paired_ratio((a, b) for a, b, _ in rows)
    slowed = paired_ratio((a * drift, b * drift) for a, b, drift in rows)
    assert found is not None
    assert slowed is not None
    assert (slowed.ratio, slowed.low) == pytest.approx((found.ratio, found.low), rel=1e-6)


def _measured(change: float, pairs: int, seed: int) -> PairedRatio:
    """Pairs on a machine that drifts by half and whose single runs scatter by 5 %, the first ``change`` as fast."""
    chance = random.Random(seed)
    drift = [30 * (1 + 0.5 * math.sin(i / 5)) for i in range(pairs)]
    found = paired_ratio(
        (speed * change * math.exp(chance.gauss(0, 0.05)), speed * math.exp(chance.gauss(0, 0.05))) for speed in drift
    )
    assert found is not None
    return found


@given(st.integers(0, 10**6))
def test_a_planted_tenth_is_found_in_thirty_pairs(seed: int) -> None:
    slower = _measured(0.9, 30, seed)
    assert slower.verdict == SLOWER
    assert slower.ratio == pytest.approx(0.9, abs=0.06)  # 4 standard errors of 30 pairs
    assert _measured(1 / 0.9, 30, seed).verdict == FASTER


@pytest.mark.parametrize("pairs", [2, 8, 30])
def test_noise_is_called_a_difference_as_seldom_as_promised(pairs: int) -> None:
    wrong = sum(_measured(1.0, pairs, seed).verdict != UNSEEN for seed in range(1000))
    # Binomial around 50 of 1000: below 29 or above 73 comes once in a thousand times.
    assert 29 <= wrong <= 73


def test_median_interval_lies_between_order_statistics() -> None:
    pairs = [(float(value), 1.0) for value in (12, 3, 5, 1, 9, 7, 11, 2, 10, 4, 8, 6)]
    found = median_ratio(pairs)
    assert found is not None
    # P(at most 2 heads in 12 throws) = .019, at most 3: .073; so two values are left out on either side.
    assert (found.ratio, found.low, found.high, found.pairs) == (6.5, 3.0, 10.0, 12)
    assert median_ratio([]) is None
    few = median_ratio(pairs[:5])
    assert few is not None
    assert (few.ratio, few.low, few.high) == (5.0, None, None)
    six = median_ratio(pairs[:6])
    assert six is not None
    assert (six.low, six.high) == (1.0, 12.0)


def test_a_wild_value_does_not_move_the_median() -> None:
    calm = [(1.5, 1.0)] * 12
    found = median_ratio([*calm[:-1], (1.5, 900.0)])
    assert found is not None
    assert (found.ratio, found.low, found.high) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("count", [6, 12, 30])
def test_the_median_interval_holds_what_it_promises(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(1000):
        found = median_ratio((math.exp(chance.gauss(0, 0.1)), 1.0) for _ in range(count))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.0 <= found.high
    assert held >= 935  # at least 95 %, less two standard errors of a thousand trials


def test_spread() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)


def test_shares_sum_to_one() -> None:
    assert share([1.0, 3.0]) == (0.25, 0.75)
    assert share([0.0, 0.0]) == (0.0, 0.0)
