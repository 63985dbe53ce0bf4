"""The one family of errors that a user may see: a cause, a way out, an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143


class DsparkError(Exception):
    """Anything that stops the work and that the user can be told in one sentence.

    Args:
        cause: what went wrong, naming the file, flag or value; a full clause without a final stop.
        way_out: what the user can do about it; may be empty where nothing helps.
    """

    exit_code = EXIT_ERROR

    def __init__(self, cause: str, way_out: str = "") -> None:
        self.cause = cause
        self.way_out = way_out
        super().__init__(f"{cause}: {way_out}" if way_out else cause)


class UsageError(DsparkError):
    """A flag, an argument or a combination of them that cannot be meant (exit code 2)."""

    exit_code = EXIT_USAGE


class CheckpointError(DsparkError):
    """A weight file, config or tokenizer that is missing, damaged or of an unknown kind."""


class PairingError(DsparkError):
    """A drafter that does not fit its target."""


class ContextError(DsparkError):
    """A prompt that does not fit the context."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that ``word`` was probably meant to be, for the way out; empty where none is near."""
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.55)
    return found[0] if found else ""
