"""Turns: every mode on every prompt, orders that cancel a drift, and an end in time."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from dspark_cli.bench.interleave import WARM_UP_TOKENS, Step, orders, take_turns, warm_up
from dspark_cli.bench.prompt_sets import KINDS
from dspark_cli.bench.statistics import paired_ratio
from tests.bench.fakes import FakeClock, FakeMode, task, tasks

Log = list[tuple[str, str, int]]


def test_modes_alternate_and_the_order_is_turned_round() -> None:
    log: Log = []
    clock = FakeClock()
    modes = [FakeMode("A", clock, 1.0, log), FakeMode("B", clock, 1.0, log)]
    samples = list(take_turns(modes, [task(str(i)) for i in range(4)], 9, clock=clock))
    assert [name for name, _, _ in log] == ["A", "B", "B", "A", "A", "B", "B", "A"]
    assert [prompt for _, prompt, _ in log] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert {limit for _, _, limit in log} == {9}
    assert [(s.mode, s.prompt) for s in samples] == [(name, prompt) for name, prompt, _ in log]


@pytest.mark.parametrize("modes", [2, 3, 5])
def test_orders_are_balanced_in_each_kind_and_over_all(modes: int) -> None:
    kinds = list(KINDS) * 6
    found = orders(kinds, modes)
    forward = tuple(range(modes))
    assert set(found) == {forward, forward[::-1]}
    assert Counter(found)[forward] == len(found) // 2
    for kind in KINDS:
        of_kind = [order for order, its in zip(found, kinds, strict=True) if its == kind]
        assert all(a != b for a, b in itertools.pairwise(of_kind)), "each kind turns round every time"


def test_a_steady_drift_cancels_out_of_the_ratio() -> None:
    clock = FakeClock()
    log: Log = []
    modes = [FakeMode("A", clock, 1.0, log), FakeMode("B", clock, 1.0, log)]
    speeds: dict[str, dict[str, float]] = {"A": {}, "B": {}}
    for number, sample in enumerate(take_turns(modes, tasks(4), 9, clock=clock)):
        speeds[sample.mode][sample.prompt] = math.exp(-0.05 * number)  # every reply is slower than the one before
    found = paired_ratio((speeds["A"][name], speeds["B"][name]) for name in speeds["A"])
    assert found is not None
    assert found.ratio == pytest.approx(1.0)
    assert found.verdict == "no difference seen"


def test_no_turn_begins_that_would_end_late() -> None:
    clock = FakeClock(now=100.0)
    log: Log = []
    modes = [FakeMode("A", clock, 2.0, log), FakeMode("B", clock, 3.0, log)]
    list(take_turns(modes, tasks(5), 9, deadline=117.0, clock=clock))
    assert clock.now == 115.0, "three turns of five seconds; a fourth would end at 120"
    assert len(log) == 6


def test_the_first_turn_is_made_however_slow() -> None:
    clock = FakeClock()
    log: Log = []
    list(take_turns([FakeMode("A", clock, 50.0, log)], tasks(1), 9, deadline=1.0, clock=clock))
    assert len(log) == 1


def test_each_reply_is_told_before_it_is_made() -> None:
    clock = FakeClock()
    log: Log = []
    told: list[Step] = []
    modes = [FakeMode("A", clock, 1.0, log, before=lambda: told.append(Step("made", "", 0, 0)))]
    list(take_turns(modes, [task("x"), task("y")], 9, tell=told.append, clock=clock))
    made = Step("made", "", 0, 0)
    assert told == [Step("A", "x", 1, 2), made, Step("A", "y", 2, 2), made]


def test_warm_up_runs_each_mode_shortly() -> None:
    log: Log = []
    clock = FakeClock()
    warm_up([FakeMode("A", clock, 1.0, log), FakeMode("B", clock, 1.0, log)], task("x"))
    assert log == [("A", "x", WARM_UP_TOKENS), ("B", "x", WARM_UP_TOKENS)]
