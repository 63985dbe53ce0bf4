"""Which verb is which function, imported only when it is called: ``dspark --help`` loads nothing heavy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dspark_cli import __version__
from dspark_cli.commands.help_page import HelpPage, VerbCommand
from dspark_cli.errors import UsageError, nearest


@dataclass(frozen=True)
class Verb:
    """A verb: its function as ``module:name``, its sentence in the overview, the heading there, examples for its help.

    Each example is a command line and, after a '#', what it does.
    """

    name: str
    function: str
    sentence: str
    heading: str
    examples: tuple[str, ...] = ()


VERBS = (
    Verb(
        "chat", "dspark_cli.commands.chat:chat", "Talk to a model in the terminal.", "Talk",
        (
            "dspark chat  # the demo model",
            "dspark chat --model qwen3-4b --think",
            "dspark chat --model ./Llama-3.2-1B --drafter none --system 'Answer in French.'",
            "dspark chat < question.txt  # one answer, then the end",
        ),
    ),
    Verb(
        "run", "dspark_cli.commands.run:run", "Answer one prompt and end; for pipes and scripts.", "Talk",
        (
            "dspark run 'What is the capital of France?'",
            "git diff | dspark run 'Write a commit message for this:'",
            "dspark run --temperature 0.7 --seed 1 --max-new-tokens 200 - < prompt.txt",
            "dspark run --json 'Hello' | jq -c 'select(.event == \"round\") | [.verified, .accepted]'",
        ),
    ),
    Verb(
        "bench", "dspark_cli.commands.bench:bench", "Measure plain against speculative decoding here.", "Measure",
        ("dspark bench --quick", "dspark bench --simulate  # schedules on made-up machines, without a model"),
    ),
    Verb(
        "train", "dspark_cli.commands.train:train", "Make a drafter for a model.", "Drafters",
        (
            "dspark train --out ./my-drafter  # an hour, for the demo model",
            "dspark train --model ./Llama-3.2-1B --out ./my-drafter --tokens 2000000 --minutes 600",
            "dspark train --out ./my-drafter --resume --minutes 180  # more of the same",
        ),
    ),
    Verb(
        "eval", "dspark_cli.commands.eval:evaluate", "Measure how much of its drafts a target accepts.", "Drafters",
        (
            "dspark eval --drafter ./my-drafter",
            "dspark eval --drafter ./my-drafter --temperature 1 --seed 1 --json",
        ),
    ),
    Verb(
        "calibrate", "dspark_cli.commands.calibrate:calibrate", "Make a drafter's confidences mean what they say.",
        "Drafters",
        (
            "dspark calibrate --drafter ./my-drafter",
            "dspark calibrate --drafter ./my-drafter --prompts held-out.txt --plot reliability.png",
        ),
    ),
    Verb(
        "config", "dspark_cli.commands.config:config", "Show the settings and where each came from.", "Set up",
        (
            "dspark config  # every setting, its value, its source",
            "dspark config example > \"$(dspark config path)\"  # a file to edit",
        ),
    ),
)  # fmt: skip


def program() -> Any:
    """The whole command line as a click command."""
    app = typer.Typer(
        name="dspark",
        cls=VerbGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(dspark)
    return get_command(app)


def dspark(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Chat on this machine with DSpark speculative decoding: several tokens a step, exactly the model's own answers."""
    if version:
        typer.echo(f"dspark {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def verb_command(verb: Verb) -> Any:
    """The click command of ``verb``; imports its module."""
    module, _, name = verb.function.partition(":")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    function = getattr(importlib.import_module(module), name)
    app.command(verb.name, cls=VerbCommand, context_settings=settings, epilog="\n".join(verb.examples))(function)
    return get_command(app)


class VerbGroup(HelpPage, TyperGroup):
    """``dspark`` itself: knows its verbs by the table."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "COMMAND"]

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = next((verb for verb in VERBS if verb.name == cmd_name), None)
        return verb_command(verb) if verb else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in names:
            near = nearest(args[0], names)
            way_out = f"did you mean dspark {near}?" if near else f"the commands are {', '.join(names)}"
            raise UsageError(f"there is no command {args[0]!r}", way_out)
        return super().resolve_command(ctx, args)

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        rows: dict[str, list[tuple[str, str]]] = {}
        for verb in VERBS:
            rows.setdefault(verb.heading, []).append((verb.name, verb.sentence))
        return {**rows, **super().sections(ctx)}

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        formatter.write_text("dspark COMMAND --help shows the options of a command, with examples.")
