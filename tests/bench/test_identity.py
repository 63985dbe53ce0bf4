"""Replies that part: found, measured, and told apart from ties."""

from __future__ import annotations

import pytest
import torch

from dspark_cli.bench.identity import DIFFERENT, SAME, TIE, Identity, compare_replies
from dspark_cli.bench.samples import Sample
from tests.bench.fakes import task
from tests.fakes.scripted_target import TableTarget


def _sample(mode: str, ids: tuple[int, ...], prompt: str = "p") -> Sample:
    return Sample(mode, prompt, "chat", ids, 1.0, 1.0)


def _verdict(target: TableTarget, ours: tuple[int, ...], theirs: tuple[int, ...]) -> Identity:
    found = compare_replies(target, [task("p", ids=(0, 1))], [_sample("A", ours)], [_sample("B", theirs)], 1e-4)
    assert found is not None
    return found


def test_same_ids_ask_the_target_nothing() -> None:
    target = TableTarget()
    found = _verdict(target, (1, 2, 3), (1, 2, 3))
    assert (found.verdict, found.replies, found.differences) == (SAME, 1, ())
    assert target.forward_widths == []


def test_a_difference_is_measured_at_the_first_place() -> None:
    target = TableTarget()
    logits = target.logits_after((0, 1, 3))
    best, worst = int(logits.argmax()), int(logits.argmin())
    found = _verdict(target, (3, best, 0), (3, worst, 2))
    assert found.verdict == DIFFERENT
    (item,) = found.differences
    assert (item.prompt, item.index, item.expected, item.found) == ("p", 1, best, worst)
    assert item.gap == pytest.approx(float(logits.max() - logits.min()))


@pytest.mark.parametrize(("gap", "verdict"), [(5e-5, TIE), (2e-4, DIFFERENT)])
def test_a_tie_is_a_gap_within_rounding(gap: float, verdict: str) -> None:
    target = TableTarget()
    target.table[1, 3] = torch.tensor([2.0, 2.0 - gap, -1.0, -1.0], dtype=torch.float64)
    assert _verdict(target, (3, 0), (3, 1)).verdict == verdict
    # Two tokens that tie with one another, but far from the best, are no tie.
    target.table[1, 3] = torch.tensor([2.0, 2.0 - gap, 9.0, -1.0], dtype=torch.float64)
    assert _verdict(target, (3, 0), (3, 1)).verdict == DIFFERENT


def test_a_reply_that_stops_short_is_no_tie() -> None:
    found = _verdict(TableTarget(), (1, 2, 3), (1, 2))
    assert found.verdict == DIFFERENT
    assert (found.differences[0].index, found.differences[0].found, found.differences[0].gap) == (2, None, None)


def test_only_shared_prompts_are_compared() -> None:
    tasks = [task("p"), task("q")]
    ours, theirs = [_sample("A", (1,), "p")], [_sample("B", (1,), "q")]
    assert compare_replies(TableTarget(), tasks, ours, theirs, 1e-4) is None
    found = compare_replies(TableTarget(), tasks, [*ours, _sample("A", (1,), "q")], theirs, 1e-4)
    assert found is not None
    assert (found.mode, found.against, found.replies) == ("B", "A", 1)
