"""Known temperatures are recovered, errors fall, and the figures agree with their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark_cli.training.temperature_scaling import (
    area_under_curve,
    calibration_error,
    fit_temperatures,
    grid,
    perfect_error,
    prefix_survival,
    reliability,
)

CHANCES = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def head(rounds: int, temperatures: tuple[float, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of a head that is wrong by a factor in each slot, and what survived: [n, γ] each."""
    chance = torch.Generator().manual_seed(seed)
    truth = torch.randn((rounds, len(temperatures)), generator=chance, dtype=torch.float64) * 1.5 + 0.8
    accepted = torch.rand(truth.shape, generator=chance, dtype=torch.float64) < truth.sigmoid()
    return truth * torch.tensor(temperatures, dtype=torch.float64), accepted.double().cumprod(1)


@pytest.mark.parametrize("temperatures", [(2.5, 2.5, 2.5), (0.4, 1.0, 3.0), (1.0, 1.0, 1.0), (4.0, 0.5, 2.0)])
def test_a_known_temperature_is_recovered(temperatures):
    logits, survived = head(40_000, temperatures)
    found = fit_temperatures(logits, survived)
    assert found == pytest.approx(temperatures, rel=0.12)


@pytest.mark.parametrize("temperatures", [(2.5, 2.5, 2.5), (0.3, 0.5, 3.0)])
def test_the_error_falls_to_that_of_a_perfect_head_on_rounds_not_used_for_the_fit(temperatures):
    found = fit_temperatures(*head(20_000, temperatures))
    logits, survived = head(20_000, temperatures, seed=1)
    before, after = prefix_survival(logits), prefix_survival(logits, found)
    for slot in range(3):
        error = float(calibration_error(after[:, slot], survived[:, slot]))
        assert error < 0.5 * float(calibration_error(before[:, slot], survived[:, slot]))
        assert error < 1.8 * perfect_error(after[:, slot])


def test_a_chance_serves_as_a_label_and_has_less_noise():
    logits, _ = head(1000, (2.0, 2.0))
    chance = (logits / 2).sigmoid().cumprod(1)
    assert fit_temperatures(logits, chance) == pytest.approx((2.0, 2.0), rel=0.02)


def test_each_slot_stands_on_those_before_it():
    """A slot whose survival is spoilt by an earlier one gets another temperature than its own confidences ask for."""
    logits, survived = head(20_000, (1.0, 1.0))
    alone = fit_temperatures(logits[:, 1:], survived[:, 1:])
    assert alone[0] != pytest.approx(fit_temperatures(logits, survived)[1], rel=0.05)


def test_slots_that_were_not_judged_do_not_count():
    logits, survived = head(5000, (2.0, 0.5))
    holes = torch.arange(6000) % 6 == 0
    more, wrong = torch.zeros((6000, 2), dtype=torch.float64), torch.full((6000, 2), math.nan, dtype=torch.float64)
    more[~holes], wrong[~holes] = logits, survived
    more[holes] = 3.0
    assert fit_temperatures(more, wrong) == fit_temperatures(logits, survived)


@pytest.mark.parametrize(("reached", "own"), [(49, False), (50, True)])
def test_a_slot_that_few_rounds_reached_takes_the_temperature_before_it(reached, own):
    logits, survived = head(2000, (2.0, 1.0, 1.0))
    lost = survived[:, 0].cumsum(0) > reached
    logits[lost, 0], survived[lost] = -40.0, 0.0
    first, second, third = fit_temperatures(logits, survived)
    assert (second != first) == own
    assert third == second


def test_nothing_to_tell_them_apart_leaves_one():
    assert fit_temperatures(torch.zeros((60, 2)), torch.ones((60, 2))) == (1.0, 1.0)
    assert fit_temperatures(torch.ones((60, 2)), torch.full((60, 2), math.nan)) == (1.0, 1.0)


def test_the_grid_is_even_and_has_one():
    values = grid()
    assert (float(values[0]), float(values[-1])) == pytest.approx((0.1, 10.0))
    assert 1.0 in values.tolist()
    ratio = values[1:] / values[:-1]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def plain_error(predicted: list[float], outcome: list[float], bins: int) -> float:
    total = 0.0
    for number in range(bins):
        inside = [i for i, p in enumerate(predicted) if min(int(p * bins), bins - 1) == number]
        if inside:
            gap = sum(predicted[i] for i in inside) / len(inside) - sum(outcome[i] for i in inside) / len(inside)
            total += len(inside) / len(predicted) * abs(gap)
    return total


@given(data=st.data(), predicted=CHANCES, bins=st.integers(1, 25))
def test_the_error_is_that_of_its_definition(data: st.DataObject, predicted: list[float], bins: int) -> None:
    outcome = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(predicted), max_size=len(predicted)))
    p, y = torch.tensor(predicted, dtype=torch.float64), torch.tensor(outcome, dtype=torch.float64)
    found = float(calibration_error(p, y, bins))
    assert found == pytest.approx(plain_error(predicted, outcome, bins), abs=1e-12)
    rows = reliability(p, y, bins)
    assert sum(count for *_, count in rows) == len(predicted)
    assert sum(count / len(predicted) * abs(told - came) for told, came, count in rows) == pytest.approx(found)


@given(data=st.data(), predicted=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]), min_size=2, max_size=40))
def test_the_area_is_the_share_of_pairs_in_the_right_order(data: st.DataObject, predicted: list[float]) -> None:
    outcome = data.draw(st.lists(st.booleans(), min_size=len(predicted), max_size=len(predicted)))
    won = [p for p, y in zip(predicted, outcome, strict=True) if y]
    lost = [p for p, y in zip(predicted, outcome, strict=True) if not y]
    found = area_under_curve(torch.tensor(predicted), torch.tensor(outcome).double())
    if not won or not lost:
        assert found is None
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in won for b in lost]
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_a_perfect_head_errs_less_with_more_rounds_and_never_by_nothing():
    chance = torch.rand(40_000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    few, many = perfect_error(chance[:400]), perfect_error(chance)
    # The noise of a mean falls with the root of the rounds.
    assert few == pytest.approx(10 * many, rel=0.25)
    assert many == perfect_error(chance)
    assert many != perfect_error(chance, seed=1)


def test_prefix_survival_is_the_running_product():
    logits = torch.tensor([[0.0, math.log(3), -50.0]], dtype=torch.float64)
    assert prefix_survival(logits)[0].tolist() == pytest.approx([0.5, 0.375, 0.0], abs=1e-12)
    assert prefix_survival(logits, (1.0, math.log(3), 1.0))[0, 1] == pytest.approx(0.5 / (1 + math.exp(-1)))
