"""No admission looks at what only a later draw knows; where one does, the output distribution shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, product
from operator import mul

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from dspark_cli.engine.scheduler import auto as auto_module
from dspark_cli.engine.scheduler.outlook import Outlook
from dspark_cli.engine.scheduler.paper import plan_lengths
from dspark_cli.engine.scheduler.price import Step, admit_known
from dspark_cli.engine.scheduler.sps_curve import SpsCurve
from tests.engine.scheduler.schedules import BLOCK, CHANCE, MOST_REPLIES, ROW, curves, planned, seasoned

Lengths = Callable[[Sequence[Sequence[float]]], Sequence[int]]


# The property


def check_one_reply() -> None:
    @settings(phases=(Phase.generate,), max_examples=300)
    @given(curves(), st.integers(0, 99), ROW, st.lists(CHANCE, min_size=BLOCK, max_size=BLOCK))
    def holds(curve: SpsCurve, seed: int, row: list[float], other: list[float]) -> None:
        schedule = seasoned(curve, seed)
        (length,) = planned(schedule, [row])
        for slot in range(len(row) - 1):
            (changed,) = planned(schedule, [[*row[: slot + 1], *other[slot + 1 : len(row)]]])
            assert (length > slot) == (changed > slot), "the admission of a slot changed with what came after it"

    holds()


def test_later_confidences_never_change_an_admission() -> None:
    check_one_reply()


def test_a_planner_that_looks_at_the_whole_draft_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def retrospective(row: Sequence[float], step: Step, outlook: Outlook, budget: int) -> int:
        return admit_known(row, step, budget)

    monkeypatch.setattr(auto_module, "admit", retrospective)
    with pytest.raises(AssertionError, match="changed with what came after"):
        check_one_reply()


ROWS = st.lists(ROW, min_size=2, max_size=MOST_REPLIES)
OTHERS = st.lists(st.lists(CHANCE, min_size=BLOCK, max_size=BLOCK), min_size=MOST_REPLIES, max_size=MOST_REPLIES)


def hidden(rows: list[list[float]], others: list[list[float]], reply: int, slot: int) -> list[list[float]]:
    """The rows with all changed that stands behind slot ``slot`` of ``reply`` in the order of survival."""
    limit = list(accumulate(rows[reply], mul))[slot]
    changed = []
    for index, (row, other) in enumerate(zip(rows, others, strict=False)):
        before = [1.0, *accumulate(row, mul)][: len(row)]
        shown = slot + 1 if index == reply else sum(survival >= limit for survival in before)
        changed.append([*row[:shown], *other[shown : len(row)]])
    return changed


def check_many_replies() -> None:
    @settings(phases=(Phase.generate,), max_examples=200)
    @given(curves(), st.integers(0, 99), ROWS, OTHERS)
    def holds(curve: SpsCurve, seed: int, rows: list[list[float]], others: list[list[float]]) -> None:
        schedule = seasoned(curve, seed, len(rows))
        lengths = planned(schedule, rows)
        for reply, length in enumerate(lengths):
            for slot in {min(length, len(rows[reply]) - 1), max(length - 1, 0)}:
                changed = planned(schedule, hidden(rows, others, reply, slot))[reply]
                assert (length > slot) == (changed > slot), "the admission of a slot changed with what came after it"

    holds()


def test_other_replies_later_slots_never_change_an_admission() -> None:
    check_many_replies()


def test_a_planner_of_many_that_looks_at_whole_drafts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def retrospective(rows: Sequence[Sequence[float]], step: Step, outlook: Outlook, budget: int) -> list[int]:
        return [len(row) if sum(accumulate(row, mul)) > 1.0 else 0 for row in rows]

    monkeypatch.setattr(auto_module, "admit_many", retrospective)
    with pytest.raises(AssertionError, match="changed with what came after"):
        check_many_replies()


@given(curves(), st.integers(0, 99), ROWS, OTHERS)
def test_nothing_behind_the_frontier_is_looked_at(
    curve: SpsCurve, seed: int, rows: list[list[float]], others: list[list[float]]
) -> None:
    schedule = seasoned(curve, seed, len(rows))
    lengths = planned(schedule, rows)
    shown = [[*row[: n + 1], *o[n + 1 : len(row)]] for row, o, n in zip(rows, others, lengths, strict=False)]
    assert planned(schedule, shown) == lengths


# The output distribution of the first token, by enumeration: token 0 or 1, a block of two

SMOOTH = SpsCurve.flat((10, 14, 15.5, 17, 18.5, 20), 0.0)
STAIRS = SpsCurve.flat((10, 19, 19, 19, 30, 30), 0.0)
PAIRS = SpsCurve.flat((10, 10, 17, 22, 22, 22), 0.0)  # stairs for two replies
P = (0.7, 0.3)
SURE, UNSURE = 1.0, 0.05  # the second confidence knows the first token


def rows_for(tokens: Sequence[int], q: tuple[float, float]) -> list[list[float]]:
    first = sum(map(min, P, q))
    return [[first, SURE if token == 0 else UNSURE] for token in tokens]


def law(lengths_of: Lengths, q: tuple[float, float], replies: int) -> dict[tuple[int, ...], float]:
    """The exact joint law of the first token of each reply."""
    found = dict.fromkeys(product((0, 1), repeat=replies), 0.0)
    for drafted in product((0, 1), repeat=replies):
        lengths = lengths_of(rows_for(drafted, q))
        laws = [_first(token, length, q) for token, length in zip(drafted, lengths, strict=True)]
        for out in found:
            chance = np.prod([q[token] for token in drafted])
            found[out] += float(chance * np.prod([one[token] for one, token in zip(laws, out, strict=True)]))
    return found


def _first(token: int, length: int, q: tuple[float, float]) -> tuple[float, float]:
    if not length:
        return P
    accept = min(1.0, P[token] / q[token])
    left = [max(p - r, 0.0) for p, r in zip(P, q, strict=True)]
    rest = [one / sum(left) if sum(left) else 0.0 for one in left]
    return tuple(accept * (out == token) + (1.0 - accept) * rest[out] for out in (0, 1))  # type: ignore[return-value]


def paper_on(curve: SpsCurve) -> Lengths:
    return lambda rows: plan_lengths([list(accumulate(row, mul)) for row in rows], curve).lengths


def auto_on(curve: SpsCurve, replies: int, seed: int = 3) -> Lengths:
    schedule = seasoned(curve, seed, replies)

    @cache
    def lengths(rows: tuple[tuple[float, ...], ...]) -> tuple[int, ...]:
        return tuple(planned(schedule, rows))

    return lambda rows: lengths(tuple(map(tuple, rows)))


def retrospective_on(curve: SpsCurve) -> Lengths:
    """The best Θ over all vectors of lengths, whole drafts looked at."""

    def lengths(rows: Sequence[Sequence[float]]) -> tuple[int, ...]:
        survivals = [list(accumulate(row, mul)) for row in rows]

        def theta(found: tuple[int, ...]) -> float:
            tokens = len(rows) + sum(sum(a[:n]) for a, n in zip(survivals, found, strict=True))
            return tokens * curve.sps(len(rows) + sum(found))

        return max(product(range(3), repeat=len(rows)), key=theta)

    return lengths


def truth(replies: int) -> dict[tuple[int, ...], float]:
    return {out: float(np.prod([P[token] for token in out])) for out in product((0, 1), repeat=replies)}


def test_a_retrospective_planner_gives_another_distribution() -> None:
    """Appendix A of the paper: with q = (.5, .5) it gives (.85, .15)."""
    assert law(retrospective_on(STAIRS), (0.5, 0.5), 1) == pytest.approx({(0,): 0.85, (1,): 0.15})
    two = law(retrospective_on(PAIRS), (0.5, 0.5), 2)
    assert max(abs(two[out] - chance) for out, chance in truth(2).items()) > 0.02


def test_a_rule_that_looks_at_the_probability_of_the_drawn_token() -> None:
    """With p = q = (.7, .3), to verify only where q(x) ≥ .5 gives (.91, .09)."""

    def lengths(rows: Sequence[Sequence[float]]) -> list[int]:
        return [int(row[1] == SURE) for row in rows]  # in this setting it stands where token 0 was drawn

    assert law(lengths, P, 1) == pytest.approx({(0,): 0.91, (1,): 0.09})


@pytest.mark.parametrize("q", [(0.5, 0.5), P, (0.2, 0.8)])
@pytest.mark.parametrize("replies", [1, 2])
@pytest.mark.parametrize("curve", [SMOOTH, STAIRS, PAIRS], ids=["smooth", "stairs", "pairs"])
def test_algorithm_1_and_auto_keep_the_distribution(curve: SpsCurve, replies: int, q: tuple[float, float]) -> None:
    assert law(paper_on(curve), q, replies) == pytest.approx(truth(replies), abs=1e-12)
    for seed in range(20):
        assert law(auto_on(curve, replies, seed), q, replies) == pytest.approx(truth(replies), abs=1e-12)


def test_auto_really_decides_between_these_drafts() -> None:
    """Else keeping the distribution would mean nothing: some state takes the second slot where it is sure alone."""
    found = {tuple(auto_on(SMOOTH, 1, seed)(rows_for([token], (0.5, 0.5)))) for seed in range(20) for token in (0, 1)}
    assert {(1,), (2,)} <= found


def draws(lengths_of: Lengths, q: tuple[float, float], replies: int, count: int = 100_000) -> list[int]:
    """How often each combination of first tokens comes out, drawn."""
    random = np.random.default_rng(5)
    drafted = (random.random((count, replies)) > q[0]).astype(int)
    codes = drafted @ (2 ** np.arange(replies))
    lengths = np.zeros((2**replies, replies), int)
    for code in range(2**replies):
        lengths[code] = lengths_of(rows_for([(code >> reply) & 1 for reply in range(replies)], q))
    p, q_ = np.array(P), np.array(q)
    verified = lengths[codes] > 0
    stands = random.random((count, replies)) < p[drafted] / q_[drafted]
    left = np.maximum(p - q_, 0.0)
    residual = left / left.sum() if left.sum() else p
    corrected = (random.random((count, replies)) > residual[0]).astype(int)
    plain = (random.random((count, replies)) > p[0]).astype(int)
    out = np.where(verified, np.where(stands, drafted, corrected), plain)
    return np.bincount(out @ (2 ** np.arange(replies)), minlength=2**replies).tolist()


def p_value(lengths_of: Lengths, replies: int) -> float:
    seen = draws(lengths_of, (0.5, 0.5), replies)
    by_code = [np.prod([P[(code >> reply) & 1] for reply in range(replies)]) for code in range(2**replies)]
    return float(chisquare(seen, np.array(by_code) * sum(seen)).pvalue)


@pytest.mark.parametrize("replies", [1, 3])
@pytest.mark.parametrize("curve", [SMOOTH, STAIRS, PAIRS], ids=["smooth", "stairs", "pairs"])
def test_a_hundred_thousand_draws(curve: SpsCurve, replies: int) -> None:
    assert p_value(auto_on(curve, replies), replies) > 1e-3
    assert p_value(paper_on(curve), replies) > 1e-3


def test_a_hundred_thousand_draws_find_the_retrospective_planner() -> None:
    assert p_value(retrospective_on(STAIRS), 1) < 1e-9
