"""``dspark run``: one prompt, one answer on standard output."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_cli.commands import shared_options
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.shared_options import reply_settings, with_settings
from dspark_cli.commands.standard_input import prompt_text
from dspark_cli.console import Console
from dspark_cli.conversation import Conversation
from dspark_cli.errors import EXIT_INTERRUPTED
from dspark_cli.settings import Merged, Settings

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine, Prompt
    from dspark_cli.reply_view import Reply


@with_settings(*shared_options.PAIR, *shared_options.SAMPLING, *shared_options.REPLY, *shared_options.MACHINE)
def run(
    merged: Merged,
    console: Console,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to answer. Piped text is added after a blank line; '-' waits for it however long it takes.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands, without a chat template.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write the events of the reply instead, one JSON object a line.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="End with a line on standard error: speed, accepted length, schedule.")
    ] = False,
) -> None:
    """Answer one prompt and end.

    The answer goes to standard output with one newline after it, all else to standard error.
    """
    text = prompt_text(prompt or [])
    engine, _ = open_engine(merged.settings, console)
    with closing(engine):
        reply = answer_once(engine, merged.settings, text, console, raw=raw, json=json)
    if stats:
        console.tell(reply.summary.stats_line())
    if reply.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def answer_once(
    engine: Engine, settings: Settings, text: str, console: Console, *, raw: bool = False, json: bool = False
) -> Reply:
    """Answer ``text`` on standard output, or tell the reply's events there; what came is written, whatever happens.

    Raises:
        DsparkError: the prompt does not fit, or the reply failed.
    """
    from dspark_cli.engine.text.reasoning import ReasoningSplitter
    from dspark_cli.reply_view import JsonView, TextView, ending_in_words, events_of

    asked = reply_settings(settings, engine.default_sampling)
    prompt = engine.raw_prompt(text) if raw else _chat_prompt(engine, settings, text)
    events = events_of(engine, prompt, asked)
    if json:
        return JsonView(console).show(events, engine.cancel)
    view = TextView(console, None if raw else ReasoningSplitter(prompt.starts_in_reasoning))
    try:
        view.show(events, engine.cancel)
    finally:
        if view.reply.answer:
            console.end_answer()
    if words := ending_in_words(view.reply, asked.max_new_tokens):
        console.say(words)
    return view.reply


def _chat_prompt(engine: Engine, settings: Settings, text: str) -> Prompt:
    conversation = Conversation(system=settings.system)
    conversation.add_user(text)
    return engine.prompt(conversation, think=settings.think, reserve=1)
