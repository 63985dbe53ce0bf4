"""The one sink for people and pipes: answers go to standard output, all else to standard error."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Mapping
from typing import TextIO

from dspark_cli.errors import DsparkError

_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"
# A model must not be able to drive the terminal: of the control characters only line feed and tab pass.
_UNSAFE = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}


class Console:
    """Writes answers, remarks and errors, with colour only where a terminal wants it.

    Args:
        out: where answers go.
        err: where all else goes.
        environment: read for NO_COLOR and TERM.
    """

    def __init__(self, out: TextIO, err: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self._err = err
        self.out_is_terminal = out.isatty()
        self.err_is_terminal = err.isatty()
        # Without cursor movement (TERM=dumb) nothing is styled and no line is rewritten.
        able = environment.get("TERM", "") not in ("", "dumb")
        self._colour = self.err_is_terminal and able and not environment.get("NO_COLOR")
        self._rewrites = self.err_is_terminal and able
        self._passing = False
        self._err_lost = False
        self._line_open = {"out": False, "err": False}

    @classmethod
    def standard(cls) -> Console:
        """The console of this process. Characters that an encoding lacks become '?', never an exception."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(sys.stdout, sys.stderr)

    def answer(self, text: str) -> None:
        """Write a piece of the answer, at once; exactly as it is unless a terminal reads it."""
        if text:
            self._clear_passing()
            self._write_out(text.translate(_UNSAFE) if self.out_is_terminal else text)

    def record(self, line: str) -> None:
        """Write one line of data to standard output, in UTF-8 whatever the locale says."""
        if isinstance(self._out, io.TextIOWrapper) and self._out.encoding.lower().replace("-", "") != "utf8":
            self._out.reconfigure(encoding="utf-8")
        self._write_out(line + "\n")

    def end_answer(self) -> None:
        """One newline after the answer, whatever it ends with, so that a reader can take exactly one off again."""
        self._write_out("\n")

    def reasoning(self, text: str) -> None:
        """Write a piece of a model's reasoning to standard error, dimmed on a terminal."""
        if text:
            self._clear_passing()
            shown = text.translate(_UNSAFE) if self.err_is_terminal else text
            self._write_err(f"{_DIM}{shown}{_PLAIN}" if self._colour else shown, ends_line=text.endswith("\n"))

    def say(self, line: str) -> None:
        """A remark on its own line."""
        self._own_line(self._wrapped(line), _DIM)

    def tell(self, line: str) -> None:
        """Something the user asked to see, on its own line of standard error."""
        self._own_line(line, "")

    def type_out(self, text: str) -> None:
        """Text of the dialogue itself, such as a prompt, to standard error."""
        self._write_err(text, ends_line=True)

    def error(self, sentence: str) -> None:
        """What went wrong, on its own line, after the name of the program."""
        stop = "" if sentence.endswith((".", "?", "!")) else "."
        line = self._wrapped(f"dspark: {sentence}{stop}")
        self._own_line(line.replace("dspark:", f"{_RED}dspark:{_PLAIN}", 1) if self._colour else line, "")

    def passing(self, words: str) -> None:
        """A line that the next one replaces; nothing where lines cannot be rewritten."""
        if self._rewrites and not any(self._line_open.values()):
            self._raw_err(f"{_CLEAR_LINE}{_DIM if self._colour else ''}{words}{_PLAIN if self._colour else ''}")
            self._passing = True

    def fresh_line(self) -> None:
        """Begin a new line on the terminal if a piece of text left one open."""
        self._clear_passing()
        if self._line_open["err"] or (self._line_open["out"] and self.out_is_terminal and self.err_is_terminal):
            self._write_err("\n", ends_line=True)
            self._line_open["out"] = self._line_open["out"] and not self.out_is_terminal

    def flush(self) -> None:
        """Bring everything out.

        Raises:
            BrokenPipeError: nobody reads any more.
            DsparkError: standard output cannot take it.
        """
        self._clear_passing()
        self._write_out("")
        self._raw_err("")

    def _wrapped(self, text: str) -> str:
        """``text`` broken between words where the terminal's edge would break it within one."""
        if not self.err_is_terminal:
            return text
        try:
            width = os.get_terminal_size(self._err.fileno()).columns
        except (OSError, ValueError):
            return text
        lines = (
            textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
        )
        return "\n".join("\n".join(line) for line in lines) if width > 0 else text

    def _own_line(self, line: str, style: str) -> None:
        self.fresh_line()
        self._write_err(f"{style}{line}{_PLAIN}\n" if self._colour and style else f"{line}\n", ends_line=True)

    def _clear_passing(self) -> None:
        if self._passing:
            self._passing = False
            self._raw_err(_CLEAR_LINE)

    def _write_out(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DsparkError(f"cannot write to standard output ({error.strerror})", "send it elsewhere") from error
        if text:
            self._line_open["out"] = not text.endswith("\n")

    def _write_err(self, text: str, *, ends_line: bool) -> None:
        self._raw_err(text)
        self._line_open["err"] = not ends_line

    def _raw_err(self, text: str) -> None:
        # Where nobody reads remarks any more, the answer may still be wanted.
        if not self._err_lost:
            try:
                self._err.write(text)
                self._err.flush()
            except OSError:
                self._err_lost = True
