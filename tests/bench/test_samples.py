"""Speeds of replies, and drafts added up."""

from __future__ import annotations

import pytest

from dspark_cli.bench.samples import DraftTotals, Sample
from dspark_cli.trace import RunSummary
from tests.bench.fakes import summary


def _sample(folded: RunSummary | None = None, tokens: int = 11, ms: float = 500.0) -> Sample:
    return Sample("m", "p", "chat", tuple(range(tokens)), ms, 5.0, folded)


def test_speed_leaves_the_first_token_to_the_prefill() -> None:
    assert _sample().tokens_per_second == pytest.approx(20.0)
    assert _sample(tokens=1, ms=0.0).tokens_per_second is None
    assert _sample(tokens=0).tokens_per_second is None


def test_drafts_add_up() -> None:
    totals = DraftTotals.of([_sample(summary((4, 4), (4, 1), (0, 0))), _sample(summary((2, 0))), _sample()])
    assert (totals.rounds, totals.draft_rounds) == (4, 3)
    assert (totals.verified, totals.accepted) == (10, 5)
    assert totals.mean_accepted_length == pytest.approx((5 + 2 + 1) / 3)
    assert totals.accept_by_position == [[2, 3], [1, 2], [1, 1], [1, 1]]
    assert totals.acceptance == pytest.approx([2 / 3, 1 / 2, 1.0, 1.0])
    assert totals.survival == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert totals.time_split == pytest.approx({"draft": 0.1, "plan": 0.0, "verify": 0.8, "accept": 0.1, "commit": 0.0})
    assert totals.to_dict()["wasted"] == 5


def test_no_drafts_are_no_numbers() -> None:
    totals = DraftTotals.of([_sample(summary((0, 0)))])
    assert totals.mean_accepted_length is None
    assert totals.acceptance == totals.survival == []
