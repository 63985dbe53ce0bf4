"""Calibrate a drafter's confidences on rollouts of its pair, and check that on prompts not used for the fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor

from dspark_cli.conversation import Conversation
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine
from dspark_cli.engine.model_config import Calibration
from dspark_cli.errors import ContextError, DsparkError, UsageError
from dspark_cli.training.rollouts import Observations, RolloutPlan, observe
from dspark_cli.training.temperature_scaling import (
    area_under_curve,
    calibration_error,
    fit_temperatures,
    perfect_error,
    prefix_survival,
)

FEWEST_ROUNDS = 200
LAWS = ("greedy", "sampling")
Passed = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CalibrationPlan:
    """``rounds`` for the fit and as many for the check, for greedy and for drawn replies; see ``RolloutPlan``."""

    rounds: int = 10_000
    tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    parallel: int = 16


@dataclass(frozen=True)
class SlotReport:
    """Prefix survival up to one slot on the rounds of the check, before and after the fit.

    ``perfect`` is the calibration error that predictions as good as the ones after would have if they were the truth.
    """

    rounds: int
    survived: float
    predicted_before: float
    predicted_after: float
    error_before: float
    error_after: float
    perfect: float
    auc_before: float | None
    auc_after: float | None


@dataclass(frozen=True)
class LawReport:
    """What came of one law, ``greedy`` or ``sampling``; ``checked`` are the observations of the check."""

    law: str
    temperature: float
    temperatures: tuple[float, ...]
    fit_rounds: int
    fit_prompts: int
    check_prompts: int
    slots: tuple[SlotReport, ...]
    checked: Observations

    def mean(self, name: str) -> float | None:
        """The mean of one figure over the slots that have it."""
        values = [value for slot in self.slots if (value := getattr(slot, name)) is not None]
        return sum(values) / len(values) if values else None

    def figures(self) -> dict[str, Any]:
        """All figures for JSON."""
        return {
            "temperature": self.temperature,
            "temperatures": list(self.temperatures),
            "fit_rounds": self.fit_rounds,
            "fit_prompts": self.fit_prompts,
            "check_rounds": self.checked.rounds,
            "check_prompts": self.check_prompts,
            **{f"mean_{name}": self.mean(name) for name in ("error_before", "error_after", "perfect", "auc_after")},
            "slots": [asdict(slot) for slot in self.slots],
        }


class PromptSupply:
    """Prompts of which every other one is for the fit and the rest for the check; made as they are asked for."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self._made: list[str] = []

    def part(self, number: int) -> Iterator[tuple[int, str]]:
        """Part 0 or 1, each prompt with its place among all; always from the start."""
        place = number
        while True:
            while len(self._made) <= place:
                text = next(self._texts, None)
                if text is None:
                    return
                self._made.append(text)
            yield place, self._made[place]
            place += 2


def check_calibratable(engine: Engine) -> None:
    """Refuse an engine whose drafter has no confidences.

    Raises:
        UsageError: no drafter, or one without a confidence head.
    """
    if engine.drafter_name is None:
        raise UsageError("there is no drafter to calibrate", "give one with --drafter")
    if not engine.has_confidence:
        raise UsageError(
            f"the drafter {engine.drafter_name} has no confidence head, so there is nothing to calibrate",
            "give a DSpark drafter that has one",
        )


def calibrate(engine: Engine, prompts: PromptSupply, plan: CalibrationPlan, passed: Passed) -> list[LawReport]:
    """Fit temperatures for greedy and for drawn replies, and check both on the other half of the prompts.

    ``passed`` is told what is being done, the rounds so far, and how many are wanted.

    Raises:
        UsageError: the drafter has no confidences.
        DsparkError: the prompts gave too few rounds.
    """
    check_calibratable(engine)
    return [_calibrate_law(engine, law, prompts, plan, passed) for law in LAWS]


def as_calibration(reports: list[LawReport]) -> Calibration:
    """The temperatures of both laws."""
    found = {report.law: report.temperatures for report in reports}
    return Calibration(found.get("greedy"), found.get("sampling"))


def _calibrate_law(engine: Engine, law: str, prompts: PromptSupply, plan: CalibrationPlan, passed: Passed) -> LawReport:
    sampling = Sampling(temperature=0.0 if law == "greedy" else plan.temperature, seed=plan.seed)
    rollout = RolloutPlan(sampling, plan.rounds, plan.tokens, plan.parallel)
    parts = []
    for number, purpose in enumerate(("fit", "check")):
        seen = observe(
            engine.pair,
            _prompt_ids(engine, prompts.part(number), plan.tokens),
            rollout,
            partial(_pass_on, passed, f"{law} replies for the {purpose}", plan.rounds),
        )
        if seen.rounds < FEWEST_ROUNDS:
            raise DsparkError(
                f"{seen.prompts} prompts gave {seen.rounds} rounds for the {purpose}, and {FEWEST_ROUNDS} are needed",
                "give more prompts, more --rounds or more --tokens",
            )
        parts.append(seen)
    fitted, checked = parts
    temperatures = fit_temperatures(fitted.logits, fitted.chance)
    slots = slot_reports(checked.logits, checked.survived, temperatures)
    return LawReport(
        law, sampling.temperature, temperatures, fitted.rounds, fitted.prompts, checked.prompts, slots, checked
    )


def _pass_on(passed: Passed, what: str, of: int, rounds: int) -> None:
    passed(what, min(rounds, of), of)


def _prompt_ids(
    engine: Engine, prompts: Iterator[tuple[int, str]], reserve: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The prompts as the chat template writes them, without those too long for the context."""
    for number, text in prompts:
        conversation = Conversation()
        conversation.add_user(text)
        try:
            yield number, engine.prompt(conversation, reserve=reserve).ids
        except ContextError:
            continue


def slot_reports(logits: Tensor, survived: Tensor, temperatures: tuple[float, ...]) -> tuple[SlotReport, ...]:
    """How prefix survival stands up to ``survived`` [n, γ] before and after the ``temperatures``."""
    before, after = prefix_survival(logits), prefix_survival(logits, temperatures)
    reports = []
    for slot in range(logits.shape[1]):
        known = ~survived[:, slot].isnan()
        outcome, old, new = (values[known, slot] for values in (survived, before, after))
        reports.append(
            SlotReport(
                rounds=int(known.sum()),
                survived=_mean(outcome),
                predicted_before=_mean(old),
                predicted_after=_mean(new),
                error_before=float(calibration_error(old, outcome)),
                error_after=float(calibration_error(new, outcome)),
                perfect=perfect_error(new),
                auc_before=area_under_curve(old, outcome),
                auc_after=area_under_curve(new, outcome),
            )
        )
    return tuple(reports)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0
