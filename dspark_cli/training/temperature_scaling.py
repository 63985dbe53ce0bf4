"""Sequential Temperature Scaling of confidences, and how well calibrated and how telling predictions are.

The confidence of slot k, σ(logit / T_k), is the chance that it is accepted given that all earlier ones were; prefix
survival is their running product. Temperatures are chosen from left to right, each so that the prefix survival up to
its slot has the smallest calibration error while the earlier ones stay as they are. A temperature keeps the order of
the logits within its slot. A slot that too few rounds reached tells nothing of its own and takes the temperature of the
slot before it.

Notation: n rounds, γ slots. NaN marks a slot that was not judged.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BINS: Final = 20
PERFECT_REPEATS: Final = 32
FEWEST_REACHED: Final = 50  # rounds in which the slot before was accepted too
_GRID_STEPS: Final = 192  # to either side of 1, evenly in the logarithm
_GRID_REACH: Final = 10.0
_GRID_PART: Final = 32


def grid() -> Tensor:
    """The temperatures that are tried, rising, from 1/10 to 10; 1 stands in the middle."""
    steps = torch.arange(-_GRID_STEPS, _GRID_STEPS + 1, dtype=torch.float64) / _GRID_STEPS
    return _GRID_REACH**steps


def prefix_survival(logits: Tensor, temperatures: tuple[float, ...] | None = None) -> Tensor:
    """Chance [n, γ] that all slots up to each are accepted, from confidence ``logits`` [n, γ]; None means 1."""
    if temperatures is not None:
        logits = logits / torch.tensor(temperatures, dtype=logits.dtype)
    return logits.sigmoid().cumprod(1)


def fit_temperatures(logits: Tensor, survived: Tensor) -> tuple[float, ...]:
    """A temperature for each slot.

    Args:
        logits: [n, γ] confidence logits.
        survived: [n, γ] whether all slots up to each were accepted, or the chance of it.

    Returns:
        γ temperatures, each on the grid.
    """
    candidates = grid()
    # Of equals, the one that changes least comes first.
    candidates = candidates[candidates.log().abs().argsort(stable=True)]
    before = torch.ones(len(logits), dtype=torch.float64)
    chosen: list[float] = []
    for slot in range(logits.shape[1]):
        known = ~survived[:, slot].isnan()
        if slot and float(survived[known, slot - 1].sum()) < FEWEST_REACHED:
            chosen.append(chosen[-1])
            continue
        one, label = logits[known, slot].double(), survived[known, slot].double()
        errors = [
            calibration_error(before[known] * (one / part.unsqueeze(1)).sigmoid(), label)
            for part in torch.tensor_split(candidates, len(candidates) // _GRID_PART)
        ]
        best = candidates[torch.cat(errors).argmin()]
        chosen.append(float(best))
        before = before * (logits[:, slot].double() / best).sigmoid()
    return tuple(chosen)


def calibration_error(predicted: Tensor, outcome: Tensor, bins: int = BINS) -> Tensor:
    """Expected calibration error over ``bins`` of equal width: Σ share of the bin · |mean predicted − mean outcome|.

    Args:
        predicted: [..., n] chances.
        outcome: [n] or [..., n], 0 or 1, or chances.
        bins: how many.

    Returns:
        [...], 0 for no rounds.
    """
    outcome = outcome.expand_as(predicted)
    index = (predicted * bins).long().clamp_(0, bins - 1)
    sums = predicted.new_zeros((*predicted.shape[:-1], bins))
    difference = sums.scatter_add(-1, index, predicted - outcome)
    return difference.abs().sum(-1) / max(1, predicted.shape[-1])


def reliability(predicted: Tensor, outcome: Tensor, bins: int = BINS) -> list[tuple[float, float, int]]:
    """(mean predicted, mean outcome, rounds) of every bin that is not empty, from left to right."""
    index = (predicted * bins).long().clamp_(0, bins - 1)
    rows = []
    for number in range(bins):
        inside = index == number
        if inside.any():
            rows.append((float(predicted[inside].mean()), float(outcome[inside].mean()), int(inside.sum())))
    return rows


def perfect_error(predicted: Tensor, seed: int = 0, bins: int = BINS) -> float:
    """The calibration error that ``predicted`` [n] would have if it were the truth, the mean of 32 simulations.

    It is not 0: with finitely many rounds the outcomes of a bin stray from their chance.
    """
    chance = torch.Generator().manual_seed(seed)
    outcomes = torch.rand((PERFECT_REPEATS, len(predicted)), generator=chance, dtype=torch.float64) < predicted
    return float(calibration_error(predicted.expand(PERFECT_REPEATS, -1), outcomes.double(), bins).mean())


def area_under_curve(predicted: Tensor, outcome: Tensor) -> float | None:
    """Chance that a round that survived was given more than one that did not, ties counting half (AUC of the ROC).

    None where all rounds ended alike.
    """
    positive = outcome > 0.5
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return None
    _, where, counts = torch.unique(predicted, return_inverse=True, return_counts=True)
    # Equal values share the mean of their ranks.
    ranks = counts.double().cumsum(0) - (counts.double() - 1) / 2
    return float((ranks[where][positive].sum() - wins * (wins + 1) / 2) / (wins * losses))
