"""Keeps a model's reasoning apart from its answer while both come."""

from __future__ import annotations

REASONING, ANSWER = "reasoning", "answer"
OPEN, CLOSE = "<think>", "</think>"


class ReasoningSplitter:
    """Splits a reply at ``<think>`` and ``</think>``, also where a tag comes in parts.

    Reasoning stands only at the beginning of a reply: tags later on are part of the answer. Blank lines around the
    tags go, everything else is kept, and a reply without a tag passes unchanged.
    """

    def __init__(self, starts_inside: bool) -> None:
        """``starts_inside``: the prompt has already opened the reasoning."""
        self._state = "opened" if starts_inside else "start"
        self._held = ""

    def feed(self, delta: str) -> list[tuple[str, str]]:
        """The parts of ``delta`` that can be told apart by now, each with its channel; parts are never empty."""
        self._held += delta
        parts: list[tuple[str, str]] = []
        before = None
        while before != self._state:  # a step that changes the state leaves text for the next one
            before = self._state
            parts += getattr(self, f"_{before}")()
        return parts

    def finish(self) -> list[tuple[str, str]]:
        """What was held back, once the reply is over."""
        channel = REASONING if self._state in ("opened", "reasoning") else ANSWER
        rest, self._held = self._held, ""
        if self._state in ("opened", "closed"):
            rest = _without_blank_lines(rest)
        return [(channel, rest)] if rest else []

    def _start(self) -> list[tuple[str, str]]:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._state, self._held = "opened", text[len(OPEN) :]
        elif not OPEN.startswith(text):
            self._state = "answer"
        return []

    def _opened(self) -> list[tuple[str, str]]:
        """After ``<think>``: wait for the first word. Some models open what the prompt has opened already."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held = text[len(OPEN) :]
            return self._opened()
        if text and not OPEN.startswith(text):
            self._state, self._held = "reasoning", _without_blank_lines(self._held)
        return []

    def _reasoning(self) -> list[tuple[str, str]]:
        inside, found, after = self._held.partition(CLOSE)
        if found:
            self._state, self._held = "closed", after
            inside = inside.rstrip()
        else:
            size = next(n for n in range(len(CLOSE) - 1, -1, -1) if inside.endswith(CLOSE[:n]))
            shown = inside[: len(inside) - size].rstrip()
            inside, self._held = shown, inside[len(shown) :]
        return [(REASONING, inside)] if inside else []

    def _closed(self) -> list[tuple[str, str]]:
        if self._held.strip():
            self._state, self._held = "answer", _without_blank_lines(self._held)
        return []

    def _answer(self) -> list[tuple[str, str]]:
        text, self._held = self._held, ""
        return [(ANSWER, text)] if text else []


def split(text: str, starts_inside: bool = False) -> tuple[str, str]:
    """The reasoning and the answer of a whole reply."""
    splitter = ReasoningSplitter(starts_inside)
    parts = splitter.feed(text) + splitter.finish()
    return tuple("".join(part for kind, part in parts if kind == channel) for channel in (REASONING, ANSWER))  # type: ignore[return-value]


def _without_blank_lines(text: str) -> str:
    """``text`` without blank lines in front; the first line keeps its indentation unless a tag stands on it."""
    stripped = text.lstrip()
    gap = text[: len(text) - len(stripped)]
    return gap.rpartition("\n")[2] + stripped if "\n" in gap else stripped
