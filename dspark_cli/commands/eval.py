"""``dspark eval``: how good a drafter is at drafting for its target."""

from __future__ import annotations

import json as json_format
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_cli.commands import shared_options
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.shared_options import with_settings
from dspark_cli.console import Console
from dspark_cli.errors import UsageError
from dspark_cli.settings import Merged

if TYPE_CHECKING:
    from dspark_cli.training.evaluate import Evaluation, Tally


@with_settings(*shared_options.PAIR, "temperature", "seed", *shared_options.MACHINE)
def evaluate(
    merged: Merged,
    console: Console,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Your own prompts: lines such as {"text": "…", "kind": "mail"}.'),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens of each reply count.")] = 96,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of the table.")] = False,
) -> None:
    """Measure a drafter on prompts of four kinds: accepted length, acceptance by position, waste.

    Whole blocks are verified unless --schedule says otherwise. Greedy unless --temperature says otherwise.
    """
    if tokens < 2:
        raise UsageError(f"--tokens {tokens} leaves no round to count", "give 2 or more")
    from dspark_cli.bench.prompt_sets import prompts_from_file, shipped_prompts
    from dspark_cli.engine.contracts import Sampling
    from dspark_cli.training.evaluate import evaluate as run

    chosen = prompts_from_file(prompts) if prompts is not None else shipped_prompts()
    settings = merged.settings
    engine, _ = open_engine(settings, console)
    with closing(engine):
        if engine.drafter_name is None:
            raise UsageError("there is no drafter to measure", "give one with --drafter")
        result = run(
            engine,
            chosen,
            sampling=Sampling(temperature=settings.temperature or 0.0, seed=settings.seed or 0),
            tokens=tokens,
            schedule=settings.schedule,
            passed=lambda count: console.passing(f"{count} of {len(chosen)} prompt{'s' * (len(chosen) != 1)}"),
        )
    console.fresh_line()
    if json:
        console.record(json_format.dumps(result.figures(), ensure_ascii=False, allow_nan=False))
    else:
        console.answer(table(result))


def table(result: Evaluation) -> str:
    """The evaluation for people: a row a kind, then all."""
    law = "greedy" if not result.temperature else f"temperature {result.temperature:g}"
    positions = max((len(tally.every.accept_by_position) for tally in result.by_kind.values()), default=0)
    heads = ["prompts", "length", "no loops", "loops", "waste", *(f"slot {k}" for k in range(1, positions + 1))]
    rows = [[kind, *_cells(tally, positions)] for kind, tally in result.by_kind.items()]
    rows.append(["all", *_cells(result.whole, positions)])
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        f"{result.drafter} ({result.kind}), block size {result.block_size}, {law}, "
        f"{result.prompts} prompt{'s' * (result.prompts != 1)}",
        "",
        *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)),
        "",
        "length: tokens a round, the corrected or bonus token included; no loops: without the rounds that began inside",
        "an exact repetition, whose share is loops; waste: verified and not accepted; slot k: accepted, given that the",
        "slots before it were.",
    ]
    return "\n".join(lines) + "\n"


def _cells(tally: Tally, positions: int) -> list[str]:
    figures = tally.figures()
    chances = [_number(chance) for chance in figures["conditional_acceptance"]]
    return [
        _number(figures["accepted_length"]),
        _number(figures["accepted_length_without_loops"]),
        _percent(figures["looping_share"]),
        _percent(figures["waste"]),
        *chances,
        *["–"] * (positions - len(chances)),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
