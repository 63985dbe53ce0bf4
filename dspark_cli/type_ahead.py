"""What is typed while a reply runs: unseen by the reply, kept for the next prompt, never left to the shell."""

from __future__ import annotations

import os
import re
import select
import termios
import time
from collections.abc import Callable
from types import TracebackType

QUIET_S = 0.03  # a paste arrives without such a pause, a person never types without one
_LONGEST_S = 0.5  # a key that is held down never pauses
_PASTES_TOLD, _PASTES_UNTOLD = "\x1b[?2004h", "\x1b[?2004l"
_PASTE = re.compile(r"\x1b\[200~(.*?)(?:\x1b\[201~|\Z)", re.DOTALL)
_KEYS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|)")  # arrows and the like
_END_OF_INPUT, _ERASE, _ERASE_WORD, _ERASE_LINE = "\x04", "\x7f\x08", "\x17", "\x15"


def arrived() -> str:
    """What has reached the terminal (standard input) and keeps coming without a pause, also without an Enter."""
    before = termios.tcgetattr(0)
    raw = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:]]
    parts = []
    latest = time.monotonic() + _LONGEST_S
    try:
        termios.tcsetattr(0, termios.TCSANOW, raw)
        while select.select([0], [], [], QUIET_S)[0] and (part := os.read(0, 65536)):
            parts.append(part)
            if len(part) < 16 and time.monotonic() > latest:
                break
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
    return b"".join(parts).decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def discard() -> None:
    """Drop what was typed and not read, so that the shell does not take it for commands."""
    try:
        termios.tcflush(0, termios.TCIFLUSH)
    except (termios.error, OSError):
        return  # no terminal, or it is gone


class TypeAhead:
    """Within the block the terminal shows nothing that is typed; :meth:`poll` collects it.

    Lines that arrive one by one are messages of their own. What arrives at once is one message, be it that the
    terminal says so (a paste in brackets) or that several lines come without a pause.

    Args:
        show: writes to the terminal; None where it does not know of pastes in brackets.
    """

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self._show = show
        self._before: list[object] | None = None
        self.messages: list[str] = []
        self.begun = ""  # a line without its Enter
        self.ended = False  # Ctrl-D on an empty line

    def __enter__(self) -> TypeAhead:
        self._before = list(termios.tcgetattr(0))
        flags = termios.tcgetattr(0)
        # Ctrl-C still works: ISIG stays.
        flags[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(0, termios.TCSANOW, flags)
        if self._show:
            self._show(_PASTES_TOLD)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.poll()
        finally:
            if self._before is not None:
                termios.tcsetattr(0, termios.TCSANOW, self._before)  # type: ignore[arg-type]
            if self._show:
                self._show(_PASTES_UNTOLD)

    def poll(self) -> None:
        """Take what was typed since the last time."""
        if select.select([0], [], [], 0)[0] and (burst := arrived()):
            self.take(burst)

    def take(self, burst: str) -> None:
        """Sort what came at once into messages and a line that is still being typed."""
        at = 0
        for paste in _PASTE.finditer(burst):
            self._type(burst[at : paste.start()])
            self.begun += paste[1]
            at = paste.end()
        rest = burst[at:]
        several = "\n" in rest.strip("\n") and _END_OF_INPUT not in rest
        if several:
            self.begun += rest.removesuffix("\n")
            rest = rest[len(rest.removesuffix("\n")) :]
        self._type(rest)

    def _type(self, keys: str) -> None:
        for key in _KEYS.sub("", keys):
            if key == "\n":
                if self.begun.strip():
                    self.messages.append(self.begun)
                self.begun = ""
            elif key in _ERASE:
                self.begun = self.begun[:-1]
            elif key == _ERASE_WORD:
                self.begun = re.sub(r"\S+\s*\Z", "", self.begun)
            elif key == _ERASE_LINE:
                self.begun = ""
            elif key == _END_OF_INPUT:
                self.ended = self.ended or not self.begun
            elif key.isprintable() or key == "\t":
                self.begun += key
