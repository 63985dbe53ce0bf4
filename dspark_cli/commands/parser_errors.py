"""What the argument parser found wrong, in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from dspark_cli.errors import UsageError

# What the parser raises is not exported by typer; its ancestor is.
ParserError: type[Exception] = typer.BadParameter.__mro__[1]

_NUMBER = re.compile(r"valid (integer|number|float)")


def plainly(error: Any, path: str, arguments: Sequence[str]) -> UsageError:
    """The parser's ``error`` about ``arguments`` of the command ``path``, as ours."""
    if getattr(error, "possibilities", None) is not None or type(error).__name__ == "NoSuchOption":
        near = " or ".join(error.possibilities or ())
        return UsageError(
            f"there is no option {error.option_name}", f"did you mean {near}?" if near else f"{path} --help shows all"
        )
    said = str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".")
    parameter = getattr(error, "param", None)
    if parameter is not None and (kind := _NUMBER.search(said)):
        value = _value(parameter.opts, arguments)
        noun = "a whole number" if kind[1] == "integer" else "a number"
        return UsageError(f"{parameter.opts[-1]} must be {noun}" + (f", not {value!r}" if value is not None else ""))
    return UsageError(said[:1].lower() + said[1:], f"{path} --help shows the options")


def _value(names: Sequence[str], arguments: Sequence[str]) -> str | None:
    """What ``arguments`` give the option that goes by ``names``, as far as that can be seen; the last one counts."""
    found = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        name, is_joined, joined = argument.partition("=")
        if name in names:
            found = joined if is_joined else following
    return found
