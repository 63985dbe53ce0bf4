"""Shows one reply while it is made: its answer, its reasoning, its progress, and how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from dspark_cli import interruption
from dspark_cli.console import Console
from dspark_cli.events import End, Event, Note, Prefill, Text, to_json
from dspark_cli.trace import RunSummary

if TYPE_CHECKING:
    from dspark_cli.engine.contracts import Sampling
    from dspark_cli.engine.engine import Engine, Prompt

_REASONING = "reasoning"


class Splitter(Protocol):
    """Tells reasoning and answer apart in the text of a reply."""

    def feed(self, delta: str) -> list[tuple[str, str]]: ...

    def finish(self) -> list[tuple[str, str]]: ...


@dataclass(frozen=True)
class ReplySettings:
    """How each reply is made. ``schedule`` None leaves it to the engine, ``think`` None to the chat template."""

    sampling: Sampling
    max_new_tokens: int
    stop_strings: tuple[str, ...] = ()
    schedule: str | None = None
    think: bool | None = None


@dataclass
class Reply:
    """What came of a reply, also of one that broke off: its texts, why it ended, and its numbers."""

    answer: str = ""
    reasoning: str = ""
    ended: str = ""
    interrupted: bool = False
    summary: RunSummary = field(default_factory=RunSummary)


class ReplyView:
    """Folds the events of one reply; :attr:`reply` holds what came, whatever happens."""

    def __init__(self, console: Console) -> None:
        self.reply = Reply()
        self._console = console

    def show(self, events: Iterable[Event], cancel: Callable[[], None]) -> Reply:
        """Take all events; Ctrl-C calls ``cancel`` and lets the reply end, a second Ctrl-C breaks off at once.

        Raises:
            KeyboardInterrupt: after the second Ctrl-C.
            Exception: whatever making the reply raises; the text up to there has been shown.
        """
        with stopping_on_interrupt(cancel) as interrupts:
            try:
                for event in events:
                    interruption.check()
                    self.reply.summary.fold(event)
                    if isinstance(event, End):
                        self.reply.ended = event.reason
                    self._take(event)
            finally:
                self.reply.interrupted = bool(interrupts)
                self._finish()
        return self.reply

    def _take(self, event: Event) -> None: ...

    def _finish(self) -> None: ...


class JsonView(ReplyView):
    """Writes each event to standard output as a line of JSON, and nothing else."""

    def _take(self, event: Event) -> None:
        self._console.record(to_json(event))
        if isinstance(event, Text):
            self.reply.answer += event.delta


class TextView(ReplyView):
    """Writes the answer to standard output and all else to standard error.

    Args:
        splitter: tells reasoning and answer apart; None where all text is answer.
    """

    def __init__(self, console: Console, splitter: Splitter | None) -> None:
        super().__init__(console)
        self._splitter = splitter
        self._channel = ""

    def _take(self, event: Event) -> None:
        if isinstance(event, Text):
            self._write(self._splitter.feed(event.delta) if self._splitter else [("answer", event.delta)])
        elif isinstance(event, Note):
            self._console.say(f"{event.level}: {event.message}" if event.level == "warning" else event.message)
        elif isinstance(event, Prefill) and event.done < event.total:
            self._console.passing(f"reading the prompt: {event.done} of {event.total} tokens")

    def _finish(self) -> None:
        if self._splitter:
            self._write(self._splitter.finish())

    def _write(self, parts: list[tuple[str, str]]) -> None:
        for channel, text in parts:
            if self._channel == _REASONING and channel != _REASONING:
                self._console.fresh_line()
            self._channel = channel
            if channel == _REASONING:
                self.reply.reasoning += text
                self._console.reasoning(text)
            else:
                self.reply.answer += text
                self._console.answer(text)


@contextmanager
def stopping_on_interrupt(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """Within the block the first Ctrl-C calls ``cancel``, the second raises KeyboardInterrupt.

    Yields a list that holds one item for each Ctrl-C that came.
    """
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def events_of(engine: Engine, prompt: Prompt, settings: ReplySettings) -> Iterator[Event]:
    """The events of the reply to ``prompt``.

    Raises:
        DsparkError: the prompt does not fit, or the settings do not suit the pair.
    """
    request = engine.request(
        prompt,
        sampling=settings.sampling,
        max_new_tokens=settings.max_new_tokens,
        stop_strings=settings.stop_strings,
        schedule=settings.schedule,
    )
    return engine.generate(request)


def ending_in_words(reply: Reply, limit: int) -> str:
    """What to say about a reply that did not end by itself; empty where it did. ``limit`` is that of new tokens."""
    return {
        "length": f"(cut off after {limit} token{'s' * (limit != 1)}; --max-new-tokens allows more)",
        "context": "(cut off: the context is full)",
        "cancelled": "(stopped)",
    }.get(reply.ended, "")
