"""Schedules in some state, curves of some shape: what the tests of ``auto`` are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random

from hypothesis import strategies as st

from dspark_cli.engine.contracts import Draft, RoundState
from dspark_cli.engine.scheduler.auto import Auto
from dspark_cli.engine.scheduler.sps_curve import SpsCurve

BLOCK = 5
STATE = RoundState(BLOCK, 40, BLOCK, "token-limit")
CHANCE = st.one_of(st.floats(0.0, 1.0), st.sampled_from((0.0, 0.3, 0.5, 0.9, 1.0)))
ROW = st.lists(CHANCE, min_size=2, max_size=BLOCK)
MOST_REPLIES = 5


@st.composite
def curves(draw: st.DrawFn) -> SpsCurve:
    """Flat, sloping, stairs or cliffs, with a cost of rejection or none."""
    most = MOST_REPLIES * (1 + BLOCK)
    rises = draw(st.lists(st.sampled_from((0.0, 0.0, 0.1, 1.0, 6.0)), min_size=most - 1, max_size=most - 1))
    cut_back = draw(st.sampled_from((0.0, 0.5)))
    return SpsCurve.flat(list(accumulate(rises, initial=10.0)), draw(st.sampled_from((0.0, 1.5))), cut_back)


def drawn(row: Sequence[float]) -> Draft:
    """A draft that was drawn, so that what its later confidences know must not be looked at."""
    q: object = tuple(row)
    return Draft(tuple(range(len(row))), q, tuple(row))  # type: ignore[arg-type]


def seasoned(curve: SpsCurve, seed: int, replies: int = 1) -> Auto:
    """A schedule with some rounds behind it, that will draft now."""
    random = Random(seed)
    schedule = Auto(curve, BLOCK)
    for _ in range(random.randint(0, 12)):
        base = random.random()
        rows = [[min(max(base + random.gauss(0, 0.1), 0.0), 1.0) for _ in range(BLOCK)] for _ in range(replies)]
        schedule.state.worth.bypassing = False
        lengths = planned(schedule, rows)
        accepted = [random.randint(0, length) for length in lengths]
        schedule.observe(lengths, accepted, replies + sum(accepted))
        schedule.state.worth.stake = 1e6
    schedule.state.worth.bypassing = False
    return schedule


def planned(schedule: Auto, rows: Sequence[Sequence[float]]) -> list[int]:
    """The lengths for drafts with these confidences, all drawn."""
    states = [STATE] * len(rows)
    schedule.begin_step(states)
    return [plan.planned for plan in schedule.plan_step(states, [drawn(row) for row in rows])]
