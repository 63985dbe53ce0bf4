from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import termios

import pytest

from dspark_cli.console import Console
from dspark_cli.errors import DsparkError


class Screen(io.StringIO):
    """Both streams of one terminal."""

    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


COLOUR = {"TERM": "xterm"}


def test_a_remark_begins_its_own_line_on_a_shared_terminal() -> None:
    screen = Screen()
    console = Console(screen, screen, {"TERM": "dumb"})
    console.answer("half a li")
    console.say("(stopped)")
    console.answer("next")
    console.error("it broke")
    assert screen.getvalue() == "half a li\n(stopped)\nnext\ndspark: it broke.\n"


def test_a_remark_leaves_a_redirected_answer_alone() -> None:
    out, err = io.StringIO(), Screen()
    console = Console(out, err, {"TERM": "dumb"})
    console.answer("half ")
    console.say("(note)")
    console.answer("a line")
    console.end_answer()
    assert (out.getvalue(), err.getvalue()) == ("half a line\n", "(note)\n")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_no_colour_where_none_is_wanted(environment: dict[str, str]) -> None:
    screen = Screen()
    console = Console(screen, screen, environment)
    console.reasoning("hm\n")
    console.say("note")
    console.error("bad")
    assert "\x1b" not in screen.getvalue()


def test_no_colour_without_a_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err, COLOUR)
    console.passing("loading")
    console.reasoning("hm")
    console.error("bad")
    assert (out.getvalue(), err.getvalue()) == ("", "hm\ndspark: bad.\n")


def test_a_passing_line_is_gone_before_anything_else_is_written() -> None:
    screen = Screen()
    console = Console(screen, screen, COLOUR)
    console.passing("loading")
    console.answer("hello")
    assert screen.getvalue() == "\r\x1b[K\x1b[2mloading\x1b[0m\r\x1b[Khello"
    console.passing("never within a line")
    assert "never" not in screen.getvalue()


def test_control_characters_reach_a_pipe_but_no_terminal() -> None:
    screen, pipe = Screen(), io.StringIO()
    Console(screen, screen, COLOUR).answer("a\x1b[2J\x9b\x07\r\n\tb")
    Console(pipe, screen, COLOUR).answer("a\x1b[2J\r\n\tb")
    assert (screen.getvalue(), pipe.getvalue()) == ("a[2J\n\tb", "a\x1b[2J\r\n\tb")


def test_characters_that_an_encoding_lacks_are_replaced() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    console = Console(out, io.StringIO(), COLOUR)
    console.answer("ü.")
    console.record('{"text":"ü"}')
    assert raw.getvalue() == b'?.{"text":"\xc3\xbc"}\n'


def test_an_unwritable_output_is_told_and_a_closed_pipe_is_passed_on() -> None:
    with pytest.raises(DsparkError, match="No space left"):
        Console(Full(), io.StringIO(), COLOUR).answer("x")
    with pytest.raises(BrokenPipeError):
        Console(Broken(), io.StringIO(), COLOUR).answer("x")


def test_unreadable_remarks_do_not_cost_the_answer() -> None:
    out = io.StringIO()
    console = Console(out, Broken(), COLOUR)
    console.say("note")
    console.say("another")
    console.answer("answer")
    assert out.getvalue() == "answer"


def test_remarks_and_errors_break_between_words_at_the_edge_of_a_terminal() -> None:
    other_end, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 20, 0, 0))
    with open(terminal, "w", encoding="utf-8") as screen, open(other_end, "rb", buffering=0) as seen:
        console = Console(io.StringIO(), screen, {"TERM": "dumb"})
        console.say("a remark that is longer than the terminal")
        console.error("/a/very-long-path/to/somewhere is not there")
        written = b""
        while b"there.\r\n" not in written:  # a write at a time may be read
            written += seen.read(1000)
        assert written.decode().split("\r\n") == [
            "a remark that is", "longer than the", "terminal",
            "dspark:", "/a/very-long-path/to/somewhere", "is not there.", "",
        ]  # fmt: skip
