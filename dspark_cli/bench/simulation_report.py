"""A simulation of schedules: its cells, and the table made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_cli.bench.simulator import Outcome, Rounds, cold_replies, compare
from dspark_cli.engine.scheduler.sps_curve import SpsCurve

SIMULATION_VERSION = 1
COLD_REPLIES = 40
HEAD = ("curve", "text", "best fixed", "(which)", "whole block", "Algorithm 1", "auto", "regret", "cold reply")
LEGEND = (
    "Speed against plain decoding. Best fixed: the length that was best in hindsight, plain among them. Regret: how\n"
    "much longer a token takes with auto than with it. Cold reply: the slowest of {replies} replies of {tokens}\n"
    "tokens whose schedule had never seen a round."
)


@dataclass(frozen=True)
class Cell:
    """All strategies on one kind of rounds at one curve, and the slowest cold reply (None: too few rounds)."""

    curve: str
    rounds: Rounds
    outcomes: dict[str, Outcome]
    cold: float | None

    @property
    def regret(self) -> float:
        """By which share a token takes longer with ``auto`` than with the fixed length that was best in hindsight."""
        return self.outcomes["best fixed"].speed / self.outcomes["auto"].speed - 1.0

    @property
    def unknown(self) -> float:
        """Share of rounds whose end had to be drawn."""
        return float(self.rounds.unknown.mean())

    def to_dict(self) -> dict[str, Any]:
        return {
            "curve": self.curve,
            "text": self.rounds.name,
            "regret": self.regret,
            "slowest_cold_reply": self.cold,
            "unknown": self.unknown,
            "strategies": {name: outcome.to_dict() for name, outcome in self.outcomes.items()},
        }


def simulate(
    kinds: Sequence[Rounds], curves: dict[str, SpsCurve], tell: Callable[[str], None] = lambda text: None
) -> list[Cell]:
    """Every kind of rounds at every curve."""
    cells = []
    for name, curve in curves.items():
        for rounds in kinds:
            tell(f"{name}: {rounds.name}")
            cold = [outcome.speed for outcome in cold_replies(rounds, curve, replies=COLD_REPLIES)]
            cells.append(Cell(name, rounds, compare(rounds, curve), min(cold, default=None)))
    return cells


def to_dict(cells: Sequence[Cell], curves: dict[str, SpsCurve]) -> dict[str, Any]:
    return {
        "simulation": SIMULATION_VERSION,
        "curves": {
            name: {"verify_ms": curve.steps_ms(curve.widths[-1]), "draft_ms": curve.draft_ms}
            for name, curve in curves.items()
        },
        "cells": [cell.to_dict() for cell in cells],
    }


def render(cells: Sequence[Cell], tokens: int) -> str:
    """The table, and what its columns mean."""
    rows = [HEAD, *(_row(cell) for cell in cells)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = [
        "  ".join(text.ljust(width) if i in (0, 1, 3) else text.rjust(width) for i, (text, width) in enumerate(cells_))
        for cells_ in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    notes = dict.fromkeys(
        f"{cell.rounds.name}: {cell.unknown:.0%} of its rounds were verified only in part, and all of that stood; what "
        "would have stood behind was drawn from the confidences."
        for cell in cells
        if cell.rounds.unknown.any()
    )
    parts = ["\n".join(line.rstrip() for line in lines), LEGEND.format(replies=COLD_REPLIES, tokens=tokens), *notes]
    return "\n\n".join(parts) + "\n"


def _row(cell: Cell) -> tuple[str, ...]:
    of = cell.outcomes
    paper = f"{of['paper'].speed:.3f}" if "paper" in of else "–"
    cold = f"{cell.cold:.3f}" if cell.cold is not None else "–"
    speeds = (f"{of['whole block'].speed:.3f}", paper, f"{of['auto'].speed:.3f}")
    best = of["best fixed"]
    return (cell.curve, cell.rounds.name, f"{best.speed:.3f}", best.schedule, *speeds, f"{cell.regret:+.1%}", cold)
