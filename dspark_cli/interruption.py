"""Ctrl-C and SIGTERM: raised where the program stands, and remembered where Python drops what was raised."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType
from typing import Any

_AGAIN_S = 0.02
_came: list[int] = []
_hook: list[Callable[[Any], Any]] = [sys.__unraisablehook__]  # what told of dropped exceptions before
_terminal: list[Any] = []  # the modes of the terminal at the start, for an end without any cleaning up


class Terminated(BaseException):
    """SIGTERM came: what is open is closed on the way out, so that the terminal is left as it was."""


def install() -> None:
    """Let both signals raise; a second one ends the process at once, without cleaning up."""
    with contextlib.suppress(termios.error, OSError):
        _terminal[:] = termios.tcgetattr(0)
    signal.signal(signal.SIGTERM, _end)
    # A process that was started to be deaf to Ctrl-C (nohup, a script's background job) stays so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGALRM, _raise_again)
    if sys.unraisablehook is not _dropped:
        _hook[:] = [sys.unraisablehook]
        sys.unraisablehook = _dropped


def exit_code() -> int:
    """128 and the number of the signal that came; 0 where none did."""
    return 128 + _came[0] if _came else 0


def check() -> None:
    """Raise anew for a signal that came and was dropped on its way."""
    if _came:
        raise _exception()


def forget() -> None:
    """Ctrl-C was meant for less than the whole program, and that has ended; SIGTERM is never forgotten."""
    _came[:] = [number for number in _came if number != signal.SIGINT]


def leave(code: int) -> int:
    """``code``, which is how the process ends; from here on a signal kills it, as there is nothing left to close."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    return code


def _end(number: int, frame: FrameType | None) -> None:
    again = bool(_came)
    _came.append(number)
    if again:
        _exit_at_once(number)
    raise _exception()


def _exception() -> BaseException:
    return KeyboardInterrupt() if _came[0] == signal.SIGINT else Terminated()


def _exit_at_once(number: int) -> None:
    with contextlib.suppress(termios.error, OSError):
        if _terminal and termios.tcgetattr(0) != _terminal:
            termios.tcsetattr(0, termios.TCSANOW, _terminal)
    os._exit(128 + number)


def _dropped(unraisable: Any) -> None:
    """What a finalizer or a callback raises goes nowhere. If it was ours, raise it again a moment later."""
    if isinstance(unraisable.exc_value, (KeyboardInterrupt, Terminated)) and _came:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        _hook[0](unraisable)


def _raise_again(number: int, frame: FrameType | None) -> None:
    check()
