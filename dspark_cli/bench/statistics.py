"""Numbers with their doubt: medians, quartiles, and paired ratios with a confidence interval.

Speeds are compared in pairs that were measured one right after the other, so what slows both (heat, another
program) cancels. Ratios are averaged as logarithms: 2 and ½ make 1, and swapping the two sides turns the ratio over.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
FASTER, SLOWER, UNSEEN = "faster", "slower", "no difference seen"


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of ``count`` values, in their unit."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without values; one value is its own quartiles."""
        known = sorted(values)
        if not known:
            return None
        if len(known) == 1:
            return cls(known[0], known[0], known[0], 1)
        low, median, high = statistics.quantiles(known, n=4, method="inclusive")
        return cls(median, low, high, len(known))


@dataclass(frozen=True)
class PairedRatio:
    """What ``pairs`` ratios come to, with the interval that holds the true one with ``confidence``.

    ``low`` and ``high`` are None where the pairs are too few to say anything about their own doubt.
    """

    ratio: float
    low: float | None
    high: float | None
    pairs: int
    confidence: float = CONFIDENCE

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower`` only where the whole interval lies on that side of 1."""
        if self.low is not None and self.low > 1.0:
            return FASTER
        if self.high is not None and self.high < 1.0:
            return SLOWER
        return UNSEEN


def paired_ratio(pairs: Iterable[tuple[float, float]], confidence: float = CONFIDENCE) -> PairedRatio | None:
    """How many times as large the first of each pair is as the second; None without pairs.

    The geometric mean of the ratios; the interval is Student's t on their logarithms.

    Raises:
        ValueError: a value is not positive and finite.
    """
    logs = [math.log(first) - math.log(second) for first, second in _checked(pairs)]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return PairedRatio(math.exp(mean), None, None, 1, confidence)
    half = t_quantile((1 + confidence) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return PairedRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs), confidence)


def median_ratio(pairs: Iterable[tuple[float, float]], confidence: float = CONFIDENCE) -> PairedRatio | None:
    """Like :func:`paired_ratio`, but the median, which some wild values (another program woke up) do not move.

    The interval lies between two order statistics: it assumes nothing but that the pairs are independent.

    Raises:
        ValueError: a value is not positive and finite.
    """
    ratios = sorted(first / second for first, second in _checked(pairs))
    if not ratios:
        return None
    count = len(ratios)
    # The most values that may be left out on either side: heads in ``count`` throws of a coin.
    left_out, tail = -1, 0.0
    while tail <= (1 - confidence) / 2:
        left_out += 1
        tail += math.comb(count, left_out) / 2**count
    if left_out == 0:
        return PairedRatio(statistics.median(ratios), None, None, count, confidence)
    return PairedRatio(statistics.median(ratios), ratios[left_out - 1], ratios[-left_out], count, confidence)


def _checked(pairs: Iterable[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    for first, second in pairs:
        if not (0.0 < first < math.inf and 0.0 < second < math.inf):
            raise ValueError(f"a ratio needs positive finite values, not {first} and {second}")
        yield first, second


def t_quantile(probability: float, freedom: int) -> float:
    """The value that a Student t variable with ``freedom`` degrees stays below with ``probability`` (½ … 1).

    Raises:
        ValueError: ``probability`` is not in [½, 1) or ``freedom`` is below 1.
    """
    if not 0.5 <= probability < 1.0 or freedom < 1:
        raise ValueError(f"no t quantile for probability {probability} and {freedom} degrees of freedom")
    wanted = 2 * probability - 1
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < wanted:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < wanted else (low, middle)
    return (low + high) / 2


def _t_within(value: float, freedom: int) -> float:
    """P(|t| < value) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def share(parts: Sequence[float]) -> tuple[float, ...]:
    """Each part as a share of their sum; zeros where the sum is zero."""
    total = math.fsum(parts)
    return tuple(part / total if total else 0.0 for part in parts)
