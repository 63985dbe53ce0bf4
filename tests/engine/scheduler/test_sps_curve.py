"""The step curve: what was measured stays, in between lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.scheduler.sps_curve import SpsCurve

TIMES = st.lists(st.floats(0.5, 200), min_size=1, max_size=9)


@given(TIMES)
def test_a_staircase_stays_as_it_was_measured(times: list[float]) -> None:
    curve = SpsCurve.flat(times, 1.0)
    assert curve.steps_ms(len(times), depth=999) == times
    assert [curve.sps(rows) for rows in range(1, len(times) + 1)] == [1e3 / ms for ms in times]


def test_lines_between_and_beyond_what_was_measured() -> None:
    curve = SpsCurve((1, 2, 4), (100, 300), ((10.0, 12.0, 20.0), (30.0, 32.0, 60.0)), 1.0)
    assert curve.steps_ms(5, 100) == [10.0, 12.0, 16.0, 20.0, 24.0]
    assert curve.step_ms(2, 200) == 22.0
    assert curve.step_ms(1, 400) == 40.0
    assert curve.step_ms(4, 0) == 20.0, "no depth below the first is cheaper"


def test_a_fall_at_the_end_is_not_counted_on() -> None:
    assert SpsCurve.flat((10.0, 9.0), 1.0).step_ms(5) == 9.0


@pytest.mark.parametrize(
    ("widths", "depths", "times", "draft"),
    [
        ((), (0,), ((),), 1.0),
        ((2, 3), (0,), ((1.0, 2.0),), 1.0),
        ((1, 1), (0,), ((1.0, 2.0),), 1.0),
        ((1, 2), (0, 0), ((1.0, 2.0),) * 2, 1.0),
        ((1, 2), (0, 5), ((1.0, 2.0),), 1.0),
        ((1, 2), (0,), ((1.0,),), 1.0),
        ((1, 2), (0,), ((1.0, 0.0),), 1.0),
        ((1, 2), (0,), ((1.0, float("nan")),), 1.0),
        ((1, 2), (0,), ((1.0, 2.0),), -1.0),
    ],
)
def test_what_cannot_be_a_curve(widths: tuple, depths: tuple, times: tuple, draft: float) -> None:
    with pytest.raises(ValueError, match=r"curve|step|draft"):
        SpsCurve(widths, depths, times, draft)
