"""The schedule ``auto``: its reasons, its price, its stake, what it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise, product
from operator import mul
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.contracts import Draft, RoundState
from dspark_cli.engine.scheduler.auto import Auto
from dspark_cli.engine.scheduler.outlook import Outlook
from dspark_cli.engine.scheduler.price import Step, admit, admit_known, admit_many
from dspark_cli.engine.scheduler.sps_curve import SpsCurve
from dspark_cli.engine.scheduler.worth import REFILL, STAKE, Worth
from tests.engine.scheduler.schedules import BLOCK, ROW, STATE, curves, drawn, planned

STAIRS = SpsCurve.flat((10,) * 4 + (16,) * 4, 1.5)
SLOPE = SpsCurve.flat((10, 12, 14, 16, 18, 20), 0.5)


def prices(curve: SpsCurve, price: float, slots: int, replies: int = 1) -> Step:
    return Step([0.0, *curve.steps_ms(replies + slots)], curve.draft_ms, curve.cut_back_ms, price, replies)


# Admission


def test_a_slot_goes_in_while_it_is_worth_its_row() -> None:
    step = prices(SLOPE, 0.2, 5)  # a row costs .4 tokens
    assert admit([0.9, 0.8, 0.5, 0.9, 0.9], step, Outlook.new(5), 5) == 2
    assert admit([0.9, 0.8, 0.5, 0.9, 0.9], step, Outlook.new(5), 1) == 1
    assert admit([0.3, 1.0, 1.0, 1.0, 1.0], step, Outlook.new(5), 5) == 0


def test_expected_slots_pay_for_a_stair() -> None:
    step = prices(STAIRS, 0.2, 7)  # the stair costs 1.2 tokens
    outlook = Outlook.new(7)
    outlook.mean = outlook.so_far = [0.9] * 7
    assert admit([0.95] * 7, step, outlook, 7) == 7
    outlook.mean = [0.9] * 4 + [0.1] * 3
    assert admit([0.95] * 7, step, outlook, 7) == 3, "what the slots behind bring on average does not pay"


def test_a_draft_that_began_well_is_expected_to_go_on_well() -> None:
    outlook, random = Outlook.new(7), Random(1)
    for _ in range(400):
        base = random.choice((0.2, 0.9))
        outlook.observe([min(max(base + random.gauss(0, 0.05), 0), 1) for _ in range(7)], 0, 0)
    assert outlook.ahead(0, 0.9, 7)[0] > 0.8
    assert outlook.ahead(0, 0.2, 7)[0] < 0.3
    assert outlook.ahead(6, 0.2, 7) == []


@given(curves(), st.floats(0.05, 0.5), ROW)
def test_of_a_certain_draft_the_best_length_is_taken(curve: SpsCurve, price: float, row: list[float]) -> None:
    step = prices(curve, price, BLOCK)

    def value(length: int) -> float:
        survival = [1.0, *accumulate(row[:length], mul)]
        return sum(survival) - step.cost[1 + length] - step.cut_back * (1.0 - survival[-1])

    best = max(value(length) for length in range(len(row) + 1))
    assert value(admit_known(row, step, BLOCK)) == pytest.approx(best, abs=1e-12)


def test_many_replies_fill_a_stair_that_none_would_pay_alone() -> None:
    curve = SpsCurve.flat((*(10,) * 4, *(13,) * 4, 40), 0.0)
    step = prices(curve, 0.4, 4, replies=4)  # the stair costs 1.2 tokens
    outlook = Outlook.new(1)
    assert admit_many([[0.5]] * 4, step, outlook, 4) == [1, 1, 1, 1]
    assert admit_many([[0.5], [0.1], [0.2], [0.1]], step, outlook, 4) == [0, 0, 0, 0]


def test_what_a_rejection_costs_counts() -> None:
    free, dear = SpsCurve.flat((10, 14), 0.0), SpsCurve.flat((10, 14), 0.0, cut_back_ms=3.0)
    lengths = []
    for curve in (free, dear):
        step = prices(curve, 0.1, 1)  # the row costs .4, the rejection .3 where it comes
        lengths += [admit([0.5], step, Outlook.new(1), 1), admit_known([0.5], step, 1)]
        lengths += admit_many([[0.5]], step, Outlook.new(1), 1)
    assert lengths == [1, 1, 1, 0, 0, 0]


def test_foresight_that_fell_short_is_made_anew() -> None:
    """Two stairs that the average of what is behind the frontier would pay, and what really is there does not."""
    step = prices(SpsCurve.flat((1, 10, 16, 17, 23, 24), 0.0), 0.1, 4, replies=2)
    outlook = Outlook.new(2)
    outlook.mean = outlook.so_far = [0.5, 0.9]
    assert admit_many([[0.5, 0.9]] * 2, step, outlook, 4) == [2, 2]
    assert admit_many([[0.5, 0.1]] * 2, step, outlook, 4) == [1, 1]


@given(st.floats(0.01, 0.2), st.lists(ROW, min_size=2, max_size=4), st.integers(0, 9))
def test_where_each_row_costs_the_same_each_slot_worth_it_goes_in(
    price: float, rows: list[list[float]], budget: int
) -> None:
    curve = SpsCurve((1, 2), (0,), ((10.0, 12.0),), 0.0)
    slots = sum(map(len, rows))
    lengths = admit_many(rows, prices(curve, price, slots, len(rows)), Outlook.new(BLOCK), slots)
    cost = price * curve.step_ms(3) - price * curve.step_ms(2)
    survivals = [list(accumulate(row, mul)) for row in rows]
    for survival, length in zip(survivals, lengths, strict=True):
        assert all(a > cost - 1e-9 for a in survival[:length])
        assert length == len(survival) or survival[length] <= cost + 1e-9
    bounded = admit_many(rows, prices(curve, price, slots, len(rows)), Outlook.new(BLOCK), budget)
    assert sum(bounded) == min(sum(lengths), budget)


def test_many_replies_never_do_worse_in_value_than_the_greedy_prefix() -> None:
    """On small convex cases the admitted slots are the best of all vectors of lengths."""
    random = Random(3)
    for _ in range(100):
        rows = [[random.random() for _ in range(3)] for _ in range(3)]
        steps = sorted(random.expovariate(1.0) for _ in range(11))
        step = prices(SpsCurve.flat(list(accumulate(steps, initial=10.0)), 0.0), 0.3, 9, 3)
        survivals = [list(accumulate(row, mul)) for row in rows]

        def value(lengths: tuple[int, ...], survivals: list[list[float]] = survivals, step: Step = step) -> float:
            return sum(sum(a[:n]) for a, n in zip(survivals, lengths, strict=True)) - step.cost[3 + sum(lengths)]

        best = max(map(value, product(range(4), repeat=3)))
        assert value(tuple(admit_many(rows, step, Outlook.new(3), 9))) == pytest.approx(best)


# The price


def test_the_price_is_the_long_run_rate_and_never_below_that_of_plain_decoding() -> None:
    schedule = Auto(SLOPE, BLOCK)
    schedule.begin(STATE)
    assert schedule._step.price == pytest.approx(1 / 10)
    for _ in range(2000):
        schedule.begin(STATE)
        schedule.plan(STATE, drawn([1.0] * BLOCK))
        schedule.observe([BLOCK], [BLOCK], 1 + BLOCK)
    assert schedule._step.price == pytest.approx(6 / 20.5, rel=1e-3)
    for _ in range(2000):
        schedule.begin(STATE)
        schedule.observe([0], [0], 1, 30.0)
    assert schedule._step.price == pytest.approx(1 / 10)


@pytest.mark.parametrize("replies", [1, 3])
def test_a_uniform_slowdown_changes_no_length(replies: int) -> None:
    rises = [random.choice((0.0, 0.5, 4.0)) for random in [Random(2)] for _ in range(3 * (1 + BLOCK) - 1)]
    times = list(accumulate(rises, initial=10.0))
    fast = SpsCurve.flat(times, 1.5, 0.25)
    slow = SpsCurve.flat([4.0 * ms for ms in times], 6.0, 1.0)
    found = []
    for curve in (fast, slow):
        schedule, random, lengths = Auto(curve, BLOCK), Random(5), []
        for _ in range(300):
            base = random.random()
            rows = [[min(max(base + random.gauss(0, 0.1), 0.0), 1.0) for _ in range(BLOCK)] for _ in range(replies)]
            lengths.append(
                planned(schedule, rows) if schedule.begin_step([STATE] * replies)[0].slots else [0] * replies
            )
            accepted = [min(length, int(BLOCK * random.random() * base * 2)) for length in lengths[-1]]
            schedule.observe(lengths[-1], accepted, replies + sum(accepted))
        found.append(lengths)
    assert found[0] == found[1]
    assert 20 < sum(map(sum, found[0])) < 300 * replies * BLOCK


# Whether to draft


@given(curves(), st.integers(0, 2**32), st.sampled_from((1, 3)))
def test_no_more_than_the_stake_is_ever_lost(curve: SpsCurve, seed: int, replies: int) -> None:
    """Whatever the confidences say and whatever stands: the bound holds at every round from the first on."""
    random = Random(seed)
    schedule, states = Auto(curve, BLOCK), [STATE] * replies
    plain = curve.step_ms(replies)
    lost = 0.0
    for round_ in range(1, 120):
        drafting = schedule.begin_step(states)[0].slots > 0
        lengths = [0] * replies
        if drafting:
            rows = [[random.choice((0.3, 0.99, random.random())) for _ in range(BLOCK)] for _ in range(replies)]
            lengths = [plan.planned for plan in schedule.plan_step(states, [drawn(row) for row in rows])]
        good = random.random() < 0.2
        accepted = [length if good else 0 for length in lengths]
        rejected = sum(a < v for a, v in zip(accepted, lengths, strict=True))
        cost = curve.step_ms(replies + sum(lengths)) + curve.draft_ms * drafting + curve.cut_back_ms * rejected
        schedule.observe(lengths, accepted, replies + sum(accepted), cost)
        lost += cost / plain - 1.0 - sum(accepted) / replies
        assert lost <= STAKE + REFILL * round_ + 1e-9


def test_gains_are_put_at_stake_only_within_a_reply() -> None:
    worth = Worth(stake=9.0)
    worth.begin_reply()
    assert worth.stake == STAKE
    worth.stake = 0.5
    worth.begin_reply()
    assert worth.stake == 0.5, "many short replies must not lose a stake each"


def test_a_lost_stake_is_saved_up_before_any_of_it_is_risked() -> None:
    curve = SpsCurve.flat((10, 11, 12, 13, 14, 15), 0.1)  # the draft and a row: .11 plain steps
    step = prices(curve, 0.1, BLOCK)
    worth = Worth(stake=0.1)
    said = []
    for _ in range(100):
        said.append(worth.begin(step, 0))
        worth.rest(step)
    assert said.index("") == round(0.9 / REFILL)
    assert worth.begin(step, 0) == ""
    worth.stake = 0.5
    assert worth.begin(step, 0) == "", "only a stake that was lost is saved up"


def reasons(schedule: Auto, rounds: int, row: list[float], accepted: int) -> list[str]:
    said = []
    for _ in range(rounds):
        intent = schedule.begin(STATE)
        if not intent.slots:
            said.append(intent.reason)
            schedule.observe([0], [0], 1)
            continue
        plan = schedule.plan(STATE, drawn(row))
        said.append(plan.reason)
        stood = min(accepted, plan.planned)
        schedule.observe([plan.planned], [stood], 1 + stood)
    return said


def test_a_confident_head_that_is_never_right_is_bypassed_and_probed_more_and_more_rarely() -> None:
    said = reasons(Auto(SLOPE, BLOCK), 800, [0.97] * BLOCK, 0)
    assert said[0] == "whole-block"
    probes = [place for place, reason in enumerate(said) if reason == "probe"]
    gaps = [b - a - 1 for a, b in pairwise(probes)]
    assert set(said[200:]) == {"bypass", "probe"}
    assert len(said) - said.count("bypass") < 40
    assert gaps == sorted(gaps)
    assert gaps[-1] == 64


def test_drafting_comes_back_when_it_pays_again() -> None:
    schedule = Auto(SLOPE, BLOCK)
    assert reasons(schedule, 200, [0.97] * BLOCK, 0).count("bypass") > 150
    said = reasons(schedule, 500, [0.97] * BLOCK, BLOCK)
    assert set(said[-200:]) == {"whole-block"}


def test_a_text_that_stops_to_stand_is_given_up() -> None:
    schedule = Auto(SLOPE, BLOCK)
    assert set(reasons(schedule, 200, [0.97] * BLOCK, BLOCK)) == {"whole-block"}
    said = reasons(schedule, 200, [0.97] * BLOCK, 0)
    assert said[-1] in ("bypass", "probe")
    assert said.count("bypass") > 150


# Reasons


def test_reasons_of_plans() -> None:
    schedule = Auto(SLOPE, BLOCK)
    schedule.begin(STATE)
    assert schedule.plan(STATE, drawn([0.0] * BLOCK)).reason == "cut-by-gain"
    plan = schedule.plan(STATE, drawn([0.99] * BLOCK))
    assert (plan.planned, plan.reason, plan.predicted_ms) == (BLOCK, "whole-block", 20.0)
    assert plan.expected_tokens == pytest.approx(1 + sum(0.99**k for k in range(1, BLOCK + 1)))
    short = replace(STATE, room=2)
    assert schedule.begin(short).slots == 2
    assert schedule.plan(short, drawn([0.99] * 2)).reason == "token-limit"
    schedule.state.worth.stake = 0.3  # covers the draft and a row, should it not stand
    schedule.begin(STATE)
    cut = schedule.plan(STATE, drawn([0.99] * BLOCK))
    assert (cut.planned, cut.reason) == (1, "cut-by-budget")
    schedule.state.worth.stake = 0.01
    assert schedule.begin(STATE).reason == "bypass"


def test_without_room_nothing_is_drafted() -> None:
    intent = Auto(SLOPE, BLOCK).begin(replace(STATE, room=0, limit="context-limit"))
    assert (intent.slots, intent.reason) == (0, "context-limit")


def test_label_rounds_verify_the_whole_block() -> None:
    schedule = Auto(SLOPE, BLOCK, label_every=10)
    said = reasons(schedule, 60, [0.9, 0.9, 0.2, 0.1, 0.1], 2)
    assert said.count("labels") == 5
    assert set(said) == {"labels", "cut-by-gain"}


def test_a_draft_without_confidences_goes_by_how_often_slots_stood() -> None:
    schedule = Auto(SLOPE, BLOCK)
    for _ in range(60):
        schedule.begin(STATE)
        plan = schedule.plan(STATE, Draft(tuple(range(BLOCK))))
        schedule.observe([plan.planned], [min(plan.planned, 2)], 1 + min(plan.planned, 2))
    assert plan.planned == 2


def test_a_certain_draft_may_be_looked_at_as_a_whole() -> None:
    cliff = SpsCurve.flat((10, 16, 16, 16, 16, 16), 0.5)
    schedule = Auto(cliff, BLOCK)
    row = (0.3, 1.0, 1.0, 1.0, 1.0)
    schedule.begin(STATE)
    assert schedule.plan(STATE, Draft(tuple(range(BLOCK)), None, row)).planned == BLOCK
    assert schedule.plan(STATE, Draft(tuple(range(BLOCK)), None, (0.3, 0.1, 0.1, 0.1, 0.1))).planned == 0


def test_a_new_curve_is_taken_up() -> None:
    schedule = Auto(SLOPE, BLOCK)
    schedule.begin(STATE)
    assert schedule.plan(STATE, drawn([0.9] * BLOCK)).predicted_ms == 20.0
    schedule.curve = SpsCurve.flat((10, 30, 50, 70, 90, 110), 0.5)
    schedule.begin(STATE)
    assert schedule.plan(STATE, drawn([0.9] * BLOCK)).predicted_ms == 10.0


def test_depth_counts() -> None:
    curve = SpsCurve((1, 6), (0, 6400), ((10.0, 10.1), (10.0, 60.0)), 0.5)
    schedule = Auto(curve, BLOCK)
    for position, wanted in ((0, BLOCK), (6400, 0)):
        state = RoundState(BLOCK, position, BLOCK, "token-limit")
        schedule.begin(state)
        assert schedule.plan(state, drawn([0.6] * BLOCK)).planned == wanted
