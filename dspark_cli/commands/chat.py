"""``dspark chat``: talk to a model."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_cli import paths, slash_commands, type_ahead
from dspark_cli.catalog.lookup import Pair
from dspark_cli.commands import shared_options, standard_input
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.process import wants_debug
from dspark_cli.commands.run import answer_once
from dspark_cli.commands.shared_options import reply_settings, with_settings
from dspark_cli.console import Console
from dspark_cli.errors import EXIT_INTERRUPTED, UsageError
from dspark_cli.settings import Merged

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine
    from dspark_cli.repl import Repl


@with_settings(*shared_options.PAIR, *shared_options.SAMPLING, *shared_options.REPLY, *shared_options.MACHINE)
def chat(
    merged: Merged,
    console: Console,
    stats: Annotated[
        bool, typer.Option("--stats", help="After each reply a line: speed, accepted length, schedule.")
    ] = False,
) -> None:
    """Talk to a model in the terminal; /help in the chat shows its commands.

    Where standard input is not a terminal it is read whole, answered once, and that is all.
    """
    if not standard_input.is_terminal():
        text = standard_input.read_all().removesuffix("\n")
        if not text:
            raise UsageError("standard input is empty", "pipe a message in, or start dspark chat in a terminal")
        engine, _ = open_engine(merged.settings, console)
        with closing(engine):
            reply = answer_once(engine, merged.settings, text, console)
        if stats:
            console.tell(reply.summary.stats_line())
        if reply.interrupted:
            raise typer.Exit(EXIT_INTERRUPTED)
        return
    engine, pair = open_engine(merged.settings, console)
    try:
        with closing(engine):
            console.say(_greeting(pair))
            _repl(engine, merged, console, stats).run()
    finally:
        type_ahead.discard()


def _repl(engine: Engine, merged: Merged, console: Console, stats: bool) -> Repl:
    from dspark_cli.engine.text.reasoning import ReasoningSplitter
    from dspark_cli.line_reader import LineReader
    from dspark_cli.repl import Repl

    reader = LineReader(paths.state_dir() / "history", slash_commands.NAMES, console.type_out)
    return Repl(
        engine,
        reply_settings(merged.settings, engine.default_sampling),
        console,
        reader,
        ReasoningSplitter,
        system=merged.settings.system,
        stats=stats,
        debug=wants_debug(sys.argv[1:]),
    )


def _greeting(pair: Pair) -> str:
    drafter = f"drafts by {pair.chosen or pair.drafter_name}" if pair.drafter is not None else "no drafter"
    return f"{pair.model_name}, {drafter}. /help shows the commands, Ctrl-D leaves."
