"""Options that verbs share, made from the table of settings."""

from __future__ import annotations

import functools
import inspect
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_cli import paths
from dspark_cli.catalog import lookup
from dspark_cli.settings import DEFAULTS, SPECS, Settings, Value, check, flag, merge, parse, unknown_variables

if TYPE_CHECKING:
    from dspark_cli.engine.contracts import Sampling
    from dspark_cli.reply_view import ReplySettings

SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
)  # fmt: skip
REPLY = ("max_new_tokens", "stop", "system", "think")
PAIR = ("model", "drafter", "schedule")
MACHINE = ("device", "threads", "context_length", "weight_cache", "kernels")

_SHORT = {"model": "-m", "drafter": "-d", "system": "-s"}

Verb = Callable[..., None]


def with_settings(*names: str) -> Callable[[Verb], Verb]:
    """Give a verb an option for each named setting.

    The verb gets what the settings come to as ``merged``, and the console of the process as ``console``.
    """

    def wrap(verb: Verb) -> Verb:
        own = [
            p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.name not in ("merged", "console")
        ]

        @functools.wraps(verb)
        def called(context: typer.Context, **given: Any) -> None:
            flags = {name: _flag_value(name, given.pop(name)) for name in names}
            given.pop("debug")
            merged = merge(flags, os.environ, config_file())
            for sentence in unknown_variables(os.environ):
                context.obj.say(sentence)
            verb(**given, merged=merged, console=context.obj)

        parameters = [_CONTEXT, *own, *(_parameter(name) for name in names), _debug_parameter()]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        del called.__wrapped__
        return called

    return wrap


_CONTEXT = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


def config_file() -> Path:
    """The user's config file, whether it is there or not."""
    return paths.config_dir() / "config.toml"


def reply_settings(settings: Settings, default: Sampling) -> ReplySettings:
    """How replies are made: what the settings say, over ``default``, the model's own way to draw.

    Without a seed among the settings a new one is drawn, so that every start differs.
    """
    from dspark_cli.reply_view import ReplySettings

    given = {name: getattr(settings, name) for name in SAMPLING if getattr(settings, name) is not None}
    return ReplySettings(
        sampling=replace(default, **{"seed": secrets.randbits(31), **given}),
        max_new_tokens=settings.max_new_tokens,
        stop_strings=settings.stop,
        schedule=settings.schedule,
        think=settings.think,
    )


def _flag_value(name: str, given: Any) -> Value:
    if given is None or given == []:
        return None
    if isinstance(given, str):
        return parse(name, given, flag(name))
    return check(name, given, flag(name))


def _parameter(name: str) -> inspect.Parameter:
    spec = SPECS[name]
    default = getattr(DEFAULTS, name)
    shown = spec.unset or ("on" if default is True else str(default))
    text = f"{spec.sentence}  [default: {shown}]"
    common: dict[str, Any] = {"help": text, "rich_help_panel": spec.group, "show_default": False}
    annotation: Any
    if spec.kind == "switch":
        plain = name.replace("_", "-")
        annotation = Annotated[bool | None, typer.Option(f"--{plain}/--no-{plain}", **common)]
    else:
        kind: Any = list[str] | None if spec.kind == "list" else str | None
        names = [*([_SHORT[name]] if name in _SHORT else []), flag(name)]
        complete = _COMPLETIONS.get(name)
        annotation = Annotated[kind, typer.Option(*names, metavar=spec.metavar, autocompletion=complete, **common)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _debug_parameter() -> inspect.Parameter:
    option = typer.Option("--debug", help="Show the traceback of an error.", show_default=False)
    return inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def _complete_model(incomplete: str) -> list[str]:
    return [name for name in lookup.catalog().models if name.startswith(incomplete)]


def _complete_drafter(incomplete: str) -> list[str]:
    names = [lookup.NGRAM, lookup.NO_DRAFTER, *lookup.catalog().drafters]
    return [name for name in names if name.startswith(incomplete)]


_COMPLETIONS: dict[str, Callable[[str], list[str]]] = {"model": _complete_model, "drafter": _complete_drafter}
