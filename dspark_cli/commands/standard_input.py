"""The prompt from the argument and from standard input."""

from __future__ import annotations

import select
import sys

from dspark_cli.errors import DsparkError, UsageError

FIRST_BYTE_S = 1.0  # how long a prompt that was given as an argument waits for more from a pipe


def is_terminal() -> bool:
    """Whether a person sits at standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def prompt_text(words: list[str]) -> str:
    """The prompt of ``dspark run``: the argument, and after a blank line what is piped in.

    One newline at the end of the piped text is dropped, nothing else is changed. With an argument the first byte has
    a second to come; after a first byte, with ``-`` or without an argument, input is read to its end.

    Raises:
        UsageError: there is no prompt, or more than one argument.
        DsparkError: standard input is closed, cannot be read, or is not UTF-8.
    """
    arguments = [word for word in words if word != "-"]
    to_the_end = "-" in words
    if len(arguments) > 1:
        raise UsageError("the prompt is more than one argument", f"put quotes around it: '{' '.join(arguments)}'")
    argument = _valid(arguments[0]) if arguments else None
    if argument is None and not to_the_end and is_terminal():
        raise UsageError("there is no prompt", "give one as an argument or pipe it in, or talk with dspark chat")
    piped = read_all() if argument is None or to_the_end or _something_comes() else ""
    parts = [part for part in (argument, piped.removesuffix("\n")) if part]
    if not parts:
        raise UsageError("the prompt is empty", "give one as an argument or pipe it in")
    return "\n\n".join(parts)


def read_all() -> str:
    """Standard input to its end, as it is.

    Raises:
        DsparkError: it is closed, cannot be read, or is not text in UTF-8.
    """
    if sys.stdin is None:
        raise DsparkError("standard input is closed", "pipe the prompt in or give it as an argument of dspark run")
    try:
        content = sys.stdin.buffer.read()
    except OSError as error:
        raise DsparkError(f"cannot read standard input ({error.strerror})", "pipe the prompt in") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DsparkError(
            f"standard input is not UTF-8 text (byte 0x{content[error.start]:02x} at offset {error.start})",
            "convert it first, for example with iconv",
        ) from error
    if "\0" in text:
        raise DsparkError(
            f"standard input is not text (a NUL byte at offset {content.index(0)})",
            "pipe text in, converted with iconv where it is UTF-16",
        )
    return text


def _something_comes() -> bool:
    """Whether something else than a person is at standard input and sends a byte, or its end, within a second."""
    if sys.stdin is None or is_terminal():
        return False
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], FIRST_BYTE_S)[0])
    except (OSError, ValueError):
        return False


def _valid(argument: str) -> str:
    """Arguments that are not text in the locale's encoding arrive with lone surrogates."""
    try:
        argument.encode("utf-8")
    except UnicodeError:
        raise UsageError("the prompt is not UTF-8 text", "pipe it in converted, for example with iconv") from None
    return argument
