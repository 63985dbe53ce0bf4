"""Passes by rows: the right rows at the right depth, in alternating order, the warm-up not counted."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from dspark_cli.bench.step_curve import WARM_UP_PASSES, measure_step_curve
from dspark_cli.engine.contracts import Rows, Verification
from tests.bench.fakes import FakeClock
from tests.fakes.scripted_target import TableTarget


class SlowTarget(TableTarget):
    """A pass takes 10 ms and 1 ms a row more, on a fake clock."""

    def __init__(self, clock: FakeClock, context_length: int = 64) -> None:
        super().__init__(context_length=context_length)
        self.clock = clock
        self.depths: list[int] = []
        self.taps: set[tuple[int, ...]] = set()

    def forward(self, blocks: Seq[Rows], taps: tuple[int, ...] = ()) -> list[Verification]:
        self.clock.now += 0.010 + 0.001 * len(blocks[0].ids)
        self.depths.append(blocks[0].cache.length)
        self.taps.add(taps)
        return super().forward(blocks, taps)


def test_medians_ratios_depth_and_order() -> None:
    clock = FakeClock()
    target = SlowTarget(clock)
    curve = measure_step_curve(target, taps=(0, 2), widths=(1, 2, 8), depth=20, repeats=4, clock=clock)
    assert curve is not None
    assert curve.medians == pytest.approx((11.0, 12.0, 18.0))
    assert all(len(times) == 4 for times in curve.times)
    ratio = curve.ratio(8)
    assert ratio is not None
    assert (ratio.ratio, ratio.pairs) == (pytest.approx(18 / 11), 4)
    assert target.depths == [0] + [20] * 3 * (4 + WARM_UP_PASSES)
    counted = [width for (width,) in target.forward_widths[1 + 3 * WARM_UP_PASSES :]]
    assert counted == [1, 2, 8, 8, 2, 1, 1, 2, 8, 8, 2, 1]
    assert target.taps == {(), (0, 2)}


def test_the_depth_fits_the_context() -> None:
    clock = FakeClock()
    curve = measure_step_curve(SlowTarget(clock, context_length=30), repeats=2, clock=clock)
    assert curve is not None
    assert curve.depth == 22
    assert measure_step_curve(SlowTarget(clock, context_length=8), repeats=2, clock=clock) is None


def test_no_repeat_but_the_first_begins_after_the_deadline() -> None:
    clock = FakeClock()
    target = SlowTarget(clock)
    # The first pass fills the cache (31 ms); a repeat takes 11 + 18 ms, two of them warm up.
    curve = measure_step_curve(target, widths=(1, 8), depth=20, repeats=9, deadline=0.180, clock=clock)
    assert curve is not None
    assert [len(times) for times in curve.times] == [4, 4]
    curve = measure_step_curve(target, widths=(1, 8), depth=20, repeats=9, deadline=0.0, clock=clock)
    assert curve is not None
    assert [len(times) for times in curve.times] == [1, 1]


def test_json_has_all_figures() -> None:
    clock = FakeClock()
    curve = measure_step_curve(SlowTarget(clock), widths=(1, 4), depth=5, repeats=3, clock=clock)
    assert curve is not None
    body = curve.to_dict()
    assert (body["depth"], body["widths"]) == (5, [1, 4])
    assert body["median_ms"] == pytest.approx([11.0, 14.0])
    assert body["ratio_to_one_row"][1]["ratio"] == pytest.approx(14 / 11)
    assert len(body["ms"][1]) == 3
