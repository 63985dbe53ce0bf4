"""Messages from a terminal: one line each, but a pasted text of many lines comes as one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dspark_cli.type_ahead import TypeAhead, arrived

try:
    import readline
except ImportError:  # some Pythons are built without it: no editing and no history then
    readline = None  # type: ignore[assignment]

PROMPT, MORE = "> ", ". "
HISTORY_KEPT = 1000
_END_OF_INPUT = "\x04"  # Ctrl-D within input that was sent ahead


class LineReader:
    """Reads messages with line editing, and a history that outlives the program.

    Args:
        history: file of earlier messages, one JSON string a line; it is made when needed.
        completions: words that Tab completes at the start of a line.
        show: writes a piece of text where the user sees it, for prompts that readline does not write.
    """

    def __init__(
        self,
        history: Path,
        completions: Iterable[str],
        show: Callable[[str], None],
    ) -> None:
        self._history = history
        self._completions = sorted(completions)
        self._show = show
        self._waiting: deque[str] = deque()
        self._begun = ""
        self._ahead: TypeAhead | None = None
        self._ended = False
        # Readline writes its prompt to standard output, which must hold answers only where it is a file.
        self._edits = readline is not None and sys.stdout.isatty()
        if self._edits:
            self._prepare_readline()

    def read(self) -> str:
        """The next message, without a newline at its end.

        Raises:
            EOFError: Ctrl-D on an empty line, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C.
            UnicodeDecodeError: the line is not text in the terminal's encoding.
        """
        if self._waiting:
            message = self._waiting.popleft()
            self._show(PROMPT + message.replace("\n", "\n" + MORE) + "\n")
        elif self._ended:
            raise EOFError
        else:
            start, self._begun = self._begun, ""
            message = self._whole_message(start)
        self._remember(message)
        return message

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within the block what is typed is not shown; it comes from :meth:`read` later."""
        told = self._edits and sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        ahead = TypeAhead(self._show if told else None)
        ahead.begun = self._begun
        self._ahead = ahead
        with ahead:
            yield
        self._ahead = None
        self._waiting.extend(ahead.messages)
        self._begun, self._ended = ahead.begun, self._ended or ahead.ended

    def poll(self) -> None:
        """Look for what was typed within :meth:`busy`; the more often, the better lines are told from pastes."""
        if self._ahead is not None:
            self._ahead.poll()

    def _whole_message(self, start: str) -> str:
        """What was typed or pasted up to an Enter after which nothing more was waiting."""
        text = self._line(PROMPT, start)
        while pending := arrived():
            pending, end, _ = pending.partition(_END_OF_INPUT)
            self._ended = bool(end)
            complete, _, rest = f"\n{pending}".rpartition("\n")
            for line in complete.split("\n")[1:]:
                self._show(f"{MORE}{line}\n")
            text += complete
            if self._ended:
                return text + f"\n{rest}" * bool(rest)
            if rest:
                text += "\n" + self._line(MORE, rest)
        return text

    def _line(self, prompt: str, start: str) -> str:
        if self._edits:
            readline.set_startup_hook(lambda: readline.insert_text(start))
            return input(prompt)
        self._show(prompt + start)
        typed = os.read(0, 65536)
        if not typed:
            raise EOFError
        return start + typed.decode("utf-8").removesuffix("\n")

    def _prepare_readline(self) -> None:
        readline.set_auto_history(False)
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.parse_and_bind("tab: complete")
        readline.set_completer_delims(" \n")
        readline.set_completer(self._complete)
        with contextlib.suppress(OSError, ValueError):
            for line in self._history.read_text(encoding="utf-8").splitlines()[-HISTORY_KEPT:]:
                readline.add_history(str(json.loads(line)))

    def _complete(self, word: str, number: int) -> str | None:
        fitting = [name for name in self._completions if name.startswith(word)] if word.startswith("/") else []
        return fitting[number] if number < len(fitting) else None

    def _remember(self, message: str) -> None:
        if not self._edits or not message.strip():
            return
        readline.add_history(message)
        # A history that cannot be written is not worth a word in the middle of a chat.
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(handle, "a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")
