"""``dspark config``: the settings, where each came from, and a file to start from."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from dspark_cli.commands.shared_options import config_file
from dspark_cli.console import Console
from dspark_cli.errors import UsageError, nearest
from dspark_cli.settings import DEFAULTS, SPECS, Merged, Value, flag, merge, unknown_variables, variable

ACTIONS = ("show", "path", "example")


def config(
    context: typer.Context,
    action: Annotated[
        str,
        typer.Argument(
            metavar="show|path|example",
            help="show: every setting, its value and its source (the default). path: where the config file is looked "
            "for. example: a config file with every setting in it.",
            show_default=False,
        ),
    ] = "show",
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Show the settings and where each came from.

    A flag wins over its environment variable, that over the config file, that over the default.
    """
    console: Console = context.obj
    if action not in ACTIONS:
        near = nearest(action, ACTIONS)
        raise UsageError(f"there is no dspark config {action}", f"use {near or ', '.join(ACTIONS)}")
    if action == "path":
        console.record(str(config_file()))
    elif action == "example":
        console.record(example_file().rstrip("\n"))
    else:
        for sentence in unknown_variables(os.environ):
            console.say(sentence)
        console.record(settings_table(merge({}, os.environ, config_file())))


def settings_table(merged: Merged) -> str:
    """A line for each setting: name, value, source."""
    rows = [
        (name, in_toml(value) if value is not None else f"({spec.unset})", merged.sources[name])
        for name, spec in SPECS.items()
        for value in [getattr(merged.settings, name)]
    ]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), 60)
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {source}" for name, value, source in rows)


def example_file() -> str:
    """A config file that sets nothing and shows how everything is set."""
    lines = [
        "# Settings of dspark. Copy this to the place that `dspark config path` names and take the # off what you set.",
        "# A flag wins over its environment variable, that over this file.",
    ]
    group = ""
    for name, spec in SPECS.items():
        if spec.group != group:
            group = spec.group
            lines += ["", f"# -- {group} --"]
        default = getattr(DEFAULTS, name)
        shown = spec.unset or in_toml(default)
        lines += ["", f"# {spec.sentence}", f"# {flag(name)}, {variable(name)}; {spec.allowed}; default: {shown}"]
        lines.append(f"# {name} = {in_toml(example_value(name))}")
    return "\n".join(lines) + "\n"


def example_value(name: str) -> Value:
    """A value that the setting may have: its example, else its default."""
    value: Value = getattr(DEFAULTS, name) if SPECS[name].example is None else SPECS[name].example
    return value


def in_toml(value: Value) -> str:
    """``value`` as a config file writes it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(in_toml(item) for item in value) + "]"
    # JSON writes texts, numbers and switches as TOML does.
    return json.dumps(value, ensure_ascii=False)
