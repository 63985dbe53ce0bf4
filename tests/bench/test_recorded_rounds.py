"""Traces and curves from files: what a recording tells, what it cannot tell, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_cli.bench.recorded_rounds import read_curve, read_trace
from dspark_cli.bench.simulation_report import render, simulate
from dspark_cli.bench.simulator import CURVES, compare
from dspark_cli.errors import UsageError
from dspark_cli.events import Curve, Round, RoundTimes, to_json


def round_(verified: int, accepted: int, drafted: int = 3, **more: Any) -> Round:
    values: dict[str, Any] = {
        "request": "r", "index": 1, "position": 9, "anchor": 5, "draft": tuple(range(drafted)),
        "confidence": (0.9, 0.5, 0.1)[:drafted], "survival": None, "planned": verified, "verified": verified,
        "accepted": accepted, "next_token": 1, "outcome": "corrected" if accepted < verified else "bonus",
        "tokens": (1,), "text": "", "reason": "fixed", "q": (1.0,) * drafted,
    }  # fmt: skip
    return Round(**{**values, **more})


def write(path: Path, events: list[Any]) -> Path:
    path.write_text("".join(to_json(event) + "\n" for event in events), encoding="utf-8")
    return path


def test_what_was_judged_is_taken_as_it_is(tmp_path: Path) -> None:
    events = [
        round_(0, 0, 0, anchor=None, reason="first-token"),
        round_(3, 3),
        round_(3, 1),
        round_(2, 0),
        round_(2, 1, outcome="stop", next_token=None),
        round_(0, 0, 0, reason="bypass"),
        round_(0, 0, 0, reason="no-match"),
    ]
    found = read_trace(write(tmp_path / "a.jsonl", events))
    assert found.rounds.name == "a"
    assert found.rounds.standing.tolist() == [3, 1, 0, 1, 0]
    assert found.rounds.drafted.tolist() == [3, 3, 3, 3, 0]
    assert not found.rounds.unknown.any()
    assert found.rounds.shown[0].tolist() == [0.9, 0.5, 0.1]
    assert found.left_out == 1
    assert not found.rounds.certain
    assert found.curve is None


def test_what_was_not_verified_is_drawn_and_marked(tmp_path: Path) -> None:
    events = [round_(1, 1) for _ in range(4000)]
    found = read_trace(write(tmp_path / "a.jsonl", events)).rounds
    assert found.unknown.all()
    assert (found.standing > 1).mean() == pytest.approx(0.5, abs=0.03)
    assert (found.standing > 2).mean() == pytest.approx(0.05, abs=0.02)
    text = render(simulate([found.part(0, 200)], {"stair": CURVES["stair"]}), 96)
    assert "a: 100% of its rounds were verified only in part" in text


def test_without_confidences_the_share_that_stood_serves(tmp_path: Path) -> None:
    events = [round_(3, count, confidence=None, q=None) for count in (3, 3, 1, 0)]
    found = read_trace(write(tmp_path / "a.jsonl", events)).rounds
    assert found.headless
    assert found.certain
    assert found.shown[0].tolist() == pytest.approx([3 / 4, 2 / 3, 1.0])
    assert all(draft.confidence is None and draft.q is None for draft in found.drafts)
    outcomes = compare(found, CURVES["stair"])
    assert "paper" not in outcomes
    assert outcomes["auto"].rounds == 4


def test_the_curve_of_a_trace(tmp_path: Path) -> None:
    told = Curve(request="r", verify_ms=(10.0, 11.0), draft_ms=2.0, depth=5, plain_tokens_per_second=100.0)
    assert read_trace(write(tmp_path / "a.jsonl", [told, round_(3, 3)])).curve.verify_ms == ((10.0, 11.0),)  # type: ignore[union-attr]
    events = [round_(3, 2, ms=RoundTimes(draft=2.0, verify=14.0 + i)) for i in range(5)]
    events += [round_(0, 0, 0, reason="bypass", ms=RoundTimes(verify=10.0)) for _ in range(5)]
    made = read_trace(write(tmp_path / "b.jsonl", events)).curve
    assert made is not None
    assert made.steps_ms(4) == [10.0, 12.0, 14.0, 16.0]
    assert made.draft_ms == 2.0
    assert read_trace(write(tmp_path / "c.jsonl", events[:-1])).curve is None, "four times are too few"


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="it is not text"):
        read_trace(path)
    path.write_text('{"event":"nothing"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"line 1 of .* is no event"):
        read_trace(path)
    with pytest.raises(UsageError, match=r"no round in .* has a draft"):
        read_trace(write(path, [round_(0, 0, 0, reason="off")]))


def test_a_curve_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"verify_ms": [10, 12], "draft_ms": 1, "other": 3}), encoding="utf-8")
    curve = read_curve(path)
    assert (curve.verify_ms, curve.draft_ms, curve.key) == (((10.0, 12.0),), 1.0, "mine")
    for text in (
        "[]",
        "{",
        '{"verify_ms": [10, 12]}',
        '{"verify_ms": [0], "draft_ms": 1}',
        '{"verify_ms": 3, "draft_ms": 1}',
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match="holds no step curve"):
            read_curve(path)


def test_rounds_without_a_match_cost_a_plain_step(tmp_path: Path) -> None:
    events = [round_(0, 0, 0, reason="no-match"), *[round_(3, 3, q=None)] * 3]
    found = read_trace(write(tmp_path / "a.jsonl", events)).rounds
    assert np.array_equal(found.drafted, [0, 3, 3, 3])
    out = compare(found, CURVES["GPU-like"])
    assert out["whole block"].tokens == 13
    assert out["auto"].tokens == 13
