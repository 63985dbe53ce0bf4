"""The fold: its numbers against hand-counted rounds."""

from __future__ import annotations

import pytest

from dspark_cli.events import Prefill, Round, RoundTimes
from dspark_cli.trace import RunSummary


def round_(at: float, tokens: int, drafted: int = 0, verified: int = 0, accepted: int = 0, **more: object) -> Round:
    values: dict[str, object] = {
        "request": "r", "index": 1, "position": 9, "anchor": 5, "draft": tuple(range(drafted)), "confidence": None,
        "survival": None, "planned": verified, "verified": verified, "accepted": accepted, "next_token": 1,
        "outcome": "bonus" if accepted == verified else "corrected", "tokens": tuple(range(tokens)), "text": "",
        "reason": "fixed", "ms": RoundTimes(draft=1.0, verify=4.0, total=6.0), "at": at, **more,
    }  # fmt: skip
    return Round(**values)  # type: ignore[arg-type]


def test_numbers_of_a_reply() -> None:
    summary = RunSummary()
    summary.fold(Prefill(request="r", done=3, total=3, ms=50.0))
    summary.fold(round_(100.0, 1, anchor=None, index=0))
    summary.fold(round_(120.0, 3, drafted=4, verified=4, accepted=2))
    summary.fold(round_(130.0, 1))
    summary.fold(round_(150.0, 3, drafted=4, verified=2, accepted=2))
    summary.fold(round_(200.0, 1, drafted=4, verified=0, accepted=0))
    stats = summary.stats()
    assert (stats["tokens"], stats["rounds"]) == (9, 4)
    assert (stats["drafted"], stats["verified"], stats["accepted"], summary.waste) == (12, 6, 4, 2)
    assert stats["accept_by_position"] == [[2, 2], [2, 2], [0, 1]]
    assert stats["mean_accepted_length"] == pytest.approx(7 / 3)
    assert stats["tokens_per_second"] == pytest.approx(80.0)
    assert stats["ms"]["verify"] == 16.0
    assert "80.0 tokens/s · accepted length 2.33 (3 rounds with a draft)" in summary.stats_line()
    assert stats["ms"]["prefill"] == 50.0


def test_a_stop_inside_the_block_judges_nothing_after_it() -> None:
    summary = RunSummary()
    summary.fold(round_(5.0, 2, drafted=5, verified=5, accepted=2, outcome="stop", next_token=None))
    assert summary.stats()["accept_by_position"] == [[1, 1], [1, 1]]


def test_a_single_token_has_no_speed() -> None:
    summary = RunSummary()
    summary.fold(round_(100.0, 1, anchor=None, index=0))
    assert summary.tokens_per_second is None
    assert "tokens/s –" in summary.stats_line()
