"""``dspark bench``: what speculative decoding gains or loses here, measured."""

from __future__ import annotations

import json as json_format
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_cli import paths
from dspark_cli.commands import shared_options
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.shared_options import with_settings
from dspark_cli.console import Console
from dspark_cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, DsparkError, UsageError
from dspark_cli.settings import Merged

if TYPE_CHECKING:
    from dspark_cli.bench.result import BenchResult
    from dspark_cli.bench.session import BenchPlan

QUICK_SECONDS = 52.0  # from the command to the end of the last reply, so that all is over within a minute


@with_settings(*shared_options.PAIR, *shared_options.MACHINE)
def bench(
    merged: Merged,
    console: Console,
    quick: Annotated[bool, typer.Option("--quick", help="Be done within a minute: fewer and shorter replies.")] = False,
    peers: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Measure other engines on the same weights too: transformers."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Your own prompts: lines such as {"text": "…", "kind": "mail"}.'),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="The most tokens of a reply.  [default: 128; 32 with --quick]"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object with all figures and replies instead of the table.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write that JSON object to this file too.")
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="No model: reckon what each schedule gives on machines described by curves."),
    ] = False,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace", metavar="FILE", help="With --simulate: rounds recorded by dspark run --json. May be repeated."
        ),
    ] = None,
    curves: Annotated[
        list[Path] | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help='With --simulate: {"verify_ms": [1 row, 2 rows, …], "draft_ms": …}. May be repeated.',
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="With --simulate: rounds of each made-up text.  [default: 12000]")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --simulate: draw verified lengths by replies at once, as PNG."),
    ] = None,
) -> None:
    """Measure plain against speculative decoding on this machine: the same prompts in turn, greedy, in one run.

    Ends in words that say which schedule to use. Exits with 1 if a schedule changed a greedy reply where rounding
    cannot be the reason. Ctrl-C ends early and shows what was measured.

    With --simulate nothing is measured: schedules are tried on made-up or recorded rounds, at made-up or given step
    curves.
    """
    began = perf_counter()
    _check_output(output)
    if simulate:
        _simulate(console, traces or [], curves or [], rounds, json, output, plot)
        return
    if traces or curves or plot or rounds is not None:
        raise UsageError("--trace, --curve, --rounds and --plot are for --simulate alone", "add --simulate")
    from dspark_cli.bench.peers import open_peers, parse_peers
    from dspark_cli.bench.session import present_load, run_bench

    load = present_load()
    names = parse_peers(peers) if peers is not None else ()
    plan = _plan(quick, prompts, tokens, began)
    schedule = merged.settings.schedule
    if schedule == "off":
        console.say("Plain decoding is measured in any case; it is compared with the default schedule.")
        schedule = None
    engine, _ = open_engine(merged.settings, console)
    with closing(engine):
        result = run_bench(
            engine,
            plan,
            schedule=schedule,
            load=load,
            open_others=lambda: open_peers(names, engine.pair, console.passing),
            tell=console.passing,
        )
    _show(result, console, json, output)
    if result.stopped == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
    if not result.lossless:
        raise typer.Exit(EXIT_ERROR)


def _plan(quick: bool, prompts: Path | None, tokens: int | None, began: float) -> BenchPlan:
    from dspark_cli.bench.prompt_sets import prompts_from_file, shipped_prompts
    from dspark_cli.bench.session import BenchPlan

    if tokens is not None and tokens < 2:
        raise UsageError(f"--tokens {tokens} leaves nothing to time", "give 2 or more")
    return BenchPlan(
        prompts=prompts_from_file(prompts) if prompts is not None else shipped_prompts(),
        max_new_tokens=tokens or (32 if quick else 128),
        step_repeats=12 if quick else 30,
        deadline=began + QUICK_SECONDS if quick else None,
        quick=quick,
    )


def _check_output(output: Path | None) -> None:
    """Refuse a place that cannot be written before the minutes are spent."""
    if output is None:
        return
    if output.suffix != ".json":
        raise UsageError(f"--output {output} is not a .json file", "give it a name that ends in .json")
    if not output.parent.is_dir():
        raise UsageError(f"--output {output} lies in a folder that does not exist", "make the folder first")


def _simulate(
    console: Console,
    traces: list[Path],
    curves: list[Path],
    rounds: int | None,
    json: bool,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Every kind of rounds at every curve: recorded ones and given curves, else made-up ones."""
    from dspark_cli.bench import simulation_report, simulator
    from dspark_cli.bench.recorded_rounds import read_curve, read_trace
    from dspark_cli.bench.simulation_plot import check_plot, draw

    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds} leaves nothing to simulate", "give 1 or more")
    if plot is not None:
        check_plot(plot)
    given = {path.stem: read_curve(path) for path in curves}
    recordings = [read_trace(path) for path in traces]
    made = {one.curve.key: one.curve for one in recordings if one.curve is not None}
    kinds = [one.rounds for one in recordings]
    kinds = kinds or [simulator.synthetic(text, rounds or simulator.ROUNDS) for text in simulator.TEXTS]
    used = {**made, **given} or simulator.CURVES
    cells = simulation_report.simulate(kinds, used, console.passing)
    table = simulation_report.render(cells, simulator.COLD_TOKENS)
    body = simulation_report.to_dict(cells, used)
    if plot is not None:
        body["parallel"] = draw(kinds, plot, console.passing)
    _write(body, table, console, json, output)
    if plot is not None:
        console.say(f"The picture is in {plot}.")


def _show(result: BenchResult, console: Console, json: bool, output: Path | None) -> None:
    from dspark_cli.bench.report import render

    _write(result.to_dict(), render(result), console, json, output)


def _write(body: dict[str, Any], table: str, console: Console, json: bool, output: Path | None) -> None:
    line = json_format.dumps(body, ensure_ascii=False, allow_nan=False)
    console.fresh_line()
    if json:
        console.record(line)
    else:
        console.answer(table)
    if output is not None:
        try:
            paths.write_atomically(output, f"{line}\n".encode())
        except OSError as error:
            raise DsparkError(f"--output {output} cannot be written ({error.strerror})", "choose another") from error
        console.say(f"All figures and replies are in {output}.")
