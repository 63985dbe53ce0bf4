"""Whole seeded replies, from start event to end event, are distributed as the target's own law says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.stats import chisquare

from dspark_cli.engine import acceptance
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from tests.distribution.enumeration import Setup
from tests.distribution.setups import SAMPLINGS, setup

REPLIES = 600
LEAST_EXPECTED = 5  # rarer outcomes are counted as one

COMBINATIONS: dict[str, Callable[[], Setup]] = {
    "table, off": lambda: setup("table", "off", "temperature-high"),
    "table, whole blocks": lambda: setup("table", "fixed:2", "temperature-low"),
    "table, one token a round": lambda: setup("table", "fixed:1", "repetition"),
    "table, threshold": lambda: setup("table", "threshold:0.45", "all"),
    "table, threshold and stop": lambda: setup("table", "threshold:0.45", "presence", stop_ids=frozenset({3})),
    "table, parallel": lambda: setup("table-parallel", "fixed:2", "top-p"),
    "ngram": lambda: setup("ngram", "fixed:2", "frequency"),
    "ngram, exact limit": lambda: setup("ngram", "fixed:2", "min-p", max_new_tokens=3),
    "vanilla head": lambda: setup("vanilla", "threshold:0.45", "top-k"),
    "gated head": lambda: setup("gated", "fixed:2", "temperature-high"),
    "rnn head": lambda: setup("rnn", "threshold:0.45", "frequency"),
    "no head": lambda: setup("none", "fixed:2", "all"),
}
BOUND = 0.001 / len(COMBINATIONS)


def p_value(one: Setup, first_seed: int, replies: int = REPLIES) -> float:
    """How likely the counts of the first three tokens of ``replies`` seeded replies are under the true law."""
    one = replace(one, request=replace(one.request, detail=0))
    counts = Counter(one.whole(SeededStream(first_seed + n)).output_ids[:3] for n in range(replies))
    truth = one.truth(3)
    if not set(counts) <= set(truth):
        return 0.0  # an outcome that cannot happen
    common = [reply for reply, chance in truth.items() if chance * replies >= LEAST_EXPECTED]
    observed = [counts[reply] for reply in common]
    expected = [truth[reply] * replies for reply in common]
    if len(common) < len(truth):
        observed.append(replies - sum(observed))
        expected.append(replies - sum(expected))
    assert len(expected) >= 6, "too few outcomes to tell anything"
    return float(chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_replies_follow_the_targets_law(name):
    first_seed = 1_000_000 * (1 + list(COMBINATIONS).index(name))
    assert p_value(COMBINATIONS[name](), first_seed) > BOUND


# Broken on purpose


def _no_residual(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acceptance, "residual", lambda p, token, q: p)


def _q_unfiltered(patch: pytest.MonkeyPatch) -> None:
    right = ReplyLaw.choose

    def choose(self, logits, drafted, *more):
        token, _, chance = right(self, logits, drafted, *more)
        return token, (logits / self.law.sampling.temperature).softmax(-1), chance

    patch.setattr(ReplyLaw, "choose", choose)


def _rows_that_see_no_draft(patch: pytest.MonkeyPatch) -> None:
    right = TokenLaw.logits

    def logits(self, rows, drafted, first=0):
        return right(self, rows, [-1] * len(drafted), first)

    patch.setattr(TokenLaw, "logits", logits)


def _the_same_number_twice(patch: pytest.MonkeyPatch) -> None:
    """Each ratio test reuses the number that drew the newest token: all single laws are right, their joint is not."""
    right = SeededStream._unit

    def draws(self: SeededStream) -> float:
        self.newest = right(self)
        return self.newest

    patch.setattr(SeededStream, "_unit", draws)
    patch.setattr(SeededStream, "bernoulli", lambda self, probability: self.newest < probability)


@pytest.mark.parametrize(
    ("breaks", "one"),
    [
        (_no_residual, lambda: setup("table", "fixed:2", "temperature-low")),
        (_no_residual, lambda: setup("ngram", "fixed:2", "frequency")),
        (_q_unfiltered, lambda: setup("vanilla", "fixed:2", "top-k")),
        (_rows_that_see_no_draft, lambda: setup("table", "fixed:2", Sampling(temperature=0.8, presence_penalty=3.0))),
        (_the_same_number_twice, lambda: setup("table", "fixed:2", SAMPLINGS["temperature-high"])),
    ],
)  # fmt: skip
def test_a_broken_rule_is_found(monkeypatch, breaks, one):
    breaks(monkeypatch)
    assert p_value(one(), 99_000_000) < BOUND
