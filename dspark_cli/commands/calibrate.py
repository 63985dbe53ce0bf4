"""``dspark calibrate``: make a drafter's confidences mean what they say."""

from __future__ import annotations

import json as json_format
import math
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_cli import __version__, paths
from dspark_cli.commands import shared_options
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.shared_options import with_settings
from dspark_cli.console import Console
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.settings import Merged

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine
    from dspark_cli.training.calibrate import CalibrationPlan, LawReport

# Training begins with seed 0 unless told otherwise; these prompts must be other ones.
PROMPT_SEED = 20_000_003
EXPLANATION = """\
survived: rounds in which all slots up to this one were accepted; promised: what the calibrated
confidences say of that on average; ECE: expected calibration error of it in 20 bins; perfect: the
ECE of a perfect head at this number of rounds.
"""


@with_settings("model", "drafter", *shared_options.MACHINE)
def calibrate(
    merged: Merged,
    console: Console,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prompts that the drafter was not trained on: JSONL, or text with one a line."
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", help="Rounds for the fit, and as many for the check, greedy and drawn.  [default: 10000]"
        ),
    ] = 10_000,
    tokens: Annotated[int, typer.Option(metavar="N", help="The most tokens of a reply.  [default: 128]")] = 128,
    temperature: Annotated[float, typer.Option(metavar="NUMBER", help="Of the drawn replies.  [default: 1]")] = 1.0,
    prompt_seed: Annotated[
        int, typer.Option(metavar="N", help="For the prompts that the model writes, and for drawn replies.")
    ] = PROMPT_SEED,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a reliability diagram into this .png file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of the table.")] = False,
) -> None:
    """Fit a temperature for each slot of a drafter's confidences, and show on other prompts what that changed.

    The model answers prompts of its own unless --prompts gives some: half of them for the fit, half for the check,
    greedily and drawn at --temperature. The temperatures go into calibration.json beside the drafter,
    bound to this model, this drafter and its block size.
    """
    plan = _plan(rounds, tokens, temperature, prompt_seed)
    if plot is not None:
        from dspark_cli.training.reliability_plot import check_plot

        check_plot(plot)
    texts = _given(prompts) if prompts is not None else None
    from dspark_cli.training.calibrate import PromptSupply, check_calibratable
    from dspark_cli.training.calibrate import calibrate as run

    engine, pair = open_engine(merged.settings, console)
    with closing(engine):
        check_calibratable(engine)
        folder = _folder(pair.drafter)
        supply = PromptSupply(iter(texts) if texts is not None else _own_prompts(engine, prompt_seed))
        reports = run(engine, supply, plan, lambda what, done, of: console.passing(f"{what}: {done} of {of} rounds"))
        values = _write(engine, folder, reports, str(prompts) if prompts is not None else f"seed {prompt_seed}")
        block_size, name = engine.block_size, engine.drafter_name
    console.fresh_line()
    if json:
        console.record(json_format.dumps(values, ensure_ascii=False, allow_nan=False))
    else:
        console.answer("".join(table(report) for report in reports) + EXPLANATION)
    console.say(f"The temperatures are in {folder / 'calibration.json'}.")
    if plot is not None:
        from dspark_cli.training.reliability_plot import draw

        draw(reports, f"{name}, block size {block_size}", plot)
        console.say(f"The reliability diagram is in {plot}.")


def _plan(rounds: int, tokens: int, temperature: float, seed: int) -> CalibrationPlan:
    from dspark_cli.training.calibrate import FEWEST_ROUNDS, CalibrationPlan

    if rounds < FEWEST_ROUNDS:
        raise UsageError(f"--rounds {rounds} is too few to calibrate with", f"give {FEWEST_ROUNDS} or more")
    if tokens < 2:
        raise UsageError(f"--tokens {tokens} leaves no round", "give 2 or more")
    if not 0 < temperature < math.inf:
        raise UsageError(f"--temperature {temperature:g} draws nothing", "give a number above 0; greedy is done too")
    return CalibrationPlan(rounds, tokens, temperature, seed)


def _given(path: Path) -> list[str]:
    from dspark_cli.training.prompt_file import read_prompts

    return read_prompts(path, fewest=2)


def _folder(drafter: Path | str | None) -> Path:
    """The drafter's folder, which must take a file."""
    folder = Path(str(drafter))
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written to", "copy the drafter to a folder of yours and give that one")
    return folder


def _own_prompts(engine: Engine, seed: int) -> Iterator[str]:
    from dspark_cli.training.prompt_synthesis import Synthesiser, SynthesisRecipe

    return Synthesiser(engine.pair, SynthesisRecipe(seed=seed), taps=()).questions()


def _write(engine: Engine, folder: Path, reports: list[LawReport], prompts: str) -> dict[str, Any]:
    from dspark_cli.engine.checkpoints.calibration_file import NAME, calibration_binding, calibration_values
    from dspark_cli.training.calibrate import as_calibration

    binding = calibration_binding(engine.pair.options.model, folder, engine.block_size)
    notes = {
        "made_with": f"dspark-cli {__version__}",
        "prompts": prompts,
        "checks": {report.law: report.figures() for report in reports},
    }
    values = calibration_values(binding, as_calibration(reports), notes)
    try:
        with paths.replacing(folder / NAME) as temporary:
            temporary.write_text(json_format.dumps(values, indent=1) + "\n", encoding="utf-8")
            temporary.chmod(0o644)  # a drafter is for others too
    except OSError as error:
        raise DsparkError(f"{folder / NAME} cannot be written ({error.strerror})", "make room on the disk") from error
    return values


def table(report: LawReport) -> str:
    """One law for people: a row a slot, then the mean."""
    law = report.law if report.law == "greedy" else f"drawn at temperature {report.temperature:g}"
    heads = ["slot", "temperature", "survived", "promised", "ECE before", "after", "perfect", "AUC before", "after"]
    rows = [
        [
            str(number), f"{temperature:.2f}", f"{slot.survived:.1%}", f"{slot.predicted_after:.1%}",
            f"{slot.error_before:.2%}", f"{slot.error_after:.2%}", f"{slot.perfect:.2%}",
            _figure(slot.auc_before), _figure(slot.auc_after),
        ]
        for number, (temperature, slot) in enumerate(zip(report.temperatures, report.slots, strict=True), start=1)
    ]  # fmt: skip
    rows.append(
        [
            "mean", "", "", "",
            *(f"{report.mean(name) or 0.0:.2%}" for name in ("error_before", "error_after", "perfect")),
            _figure(report.mean("auc_before")), _figure(report.mean("auc_after")),
        ]
    )  # fmt: skip
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return "\n".join(
        [
            f"{law}: {report.checked.rounds} rounds of {_prompts(report.check_prompts)} that the fit did not see "
            f"({report.fit_rounds} rounds of {_prompts(report.fit_prompts)})",
            "",
            *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)),
            "",
            "",
        ]
    )


def _prompts(number: int) -> str:
    return f"{number} prompt{'s' * (number != 1)}"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
