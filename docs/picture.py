"""Makes docs/chat.svg from a real chat with the demo model: ``python docs/picture.py`` with the program installed."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

SAID = (
    "What is the capital of France?",
    'Write the line "All work and no play makes Jack a dull boy." three times.',
    "/stats",
)
WIDTH = 96


def session() -> str:
    """What the terminal showed, from the first prompt on."""
    arguments = ["-m", "dspark_cli", "chat", "--temperature", "0"]
    chat = pexpect.spawn(sys.executable, arguments, encoding="utf-8", dimensions=(40, WIDTH), timeout=120)
    shown = io.StringIO()
    chat.logfile_read = shown
    for words in SAID:
        chat.expect("> $")
        chat.sendline(words)
    chat.expect("> $")
    chat.sendeof()
    chat.expect(pexpect.EOF)
    return _as_it_stood(shown.getvalue())


def _as_it_stood(raw: str) -> str:
    """The lines as they were at last: without the marks of pasting, and without what was written over."""
    lines = re.sub(r"\x1b\[\?2004[hl]\r?", "", raw).replace("\r\n", "\n").split("\n")
    kept = [line.rpartition("\x1b[K")[2].strip("\r") for line in lines]
    return "\n".join(kept).rstrip().removesuffix(">").rstrip()


if __name__ == "__main__":
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ dspark chat"))
    console.print(Text.from_ansi(session()))
    console.save_svg(str(Path(__file__).with_name("chat.svg")), title="dspark chat")
