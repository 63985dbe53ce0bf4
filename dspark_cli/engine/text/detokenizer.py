"""Tokens to text while they come: never half a character, never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import UsageError


class Detokenizer:
    """The text of one reply; implements ``contracts.TextSink``.

    A character is shown when its last byte has come. Text that may yet become a stop string is held back, and where
    one is complete the text ends before it, however the tokens were grouped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        *,
        stop_ids: frozenset[int] = frozenset(),
        continues: bool = False,
    ) -> None:
        """``stop_ids`` give no text. ``continues``: the reply goes on from a raw prompt, so that a leading space
        belongs to it; otherwise it is a text of its own and loses the space that the vocabulary puts in front.
        """
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._watches = [_Watch(text) for text in dict.fromkeys(stop_strings)]
        self._drop_space = tokenizer.strips_leading_space and not continues
        self._held = ""
        self._safe: list[str] = []
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._complete

    def push(self, token: int) -> bool:
        """Take one token; True if it completed a stop string (later tokens must not be pushed)."""
        if self._complete:
            raise ValueError("a stop string has already ended this text")
        found = None if token in self._stop_ids else self._tokenizer.token_bytes(token)
        if found:
            self._add(self._characters.decode(found))
        return self._complete

    def take(self) -> str:
        """Text that has become safe to show since the last call."""
        text = "".join(self._safe)
        self._safe.clear()
        return text

    def finish(self) -> str:
        """The rest, once the reply is over; an unfinished character shows as U+FFFD."""
        if not self._complete:
            self._add(self._characters.decode(b"", final=True))
            self._safe.append(self._held)
            self._held = ""
        return self.take()

    def _add(self, text: str) -> None:
        if self._drop_space and text:
            self._drop_space = False
            text = text[1:] if text.startswith(" ") else text
        if not self._watches:
            self._safe.append(text)
            return
        for i, char in enumerate(text):
            # In place of any(): every watch must see every character.
            complete = [watch.length for watch in self._watches if watch.advance(char)]
            if complete:
                before = self._held + text[: i + 1]
                self._safe.append(before[: -max(complete)])
                self._held = ""
                self._complete = True
                return
        self._held += text
        keep = max(watch.matched for watch in self._watches)
        self._safe.append(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]


class _Watch:
    """Looks for one stop string, a character at a time (Knuth, Morris and Pratt): O(1) a character, amortised.

    ``matched`` is how many characters at the end of the text are a beginning of the stop string.
    """

    def __init__(self, stop: str) -> None:
        if not stop:
            raise UsageError("a stop string is empty", "leave it out")
        self._stop = stop
        self.length = len(stop)
        self.matched = 0
        self._fallback = [0] * (len(stop) + 1)
        matched = 0
        for i in range(1, len(stop)):
            while matched and stop[i] != stop[matched]:
                matched = self._fallback[matched]
            matched += stop[i] == stop[matched]
            self._fallback[i + 1] = matched

    def advance(self, char: str) -> bool:
        """True if ``char`` completes the stop string."""
        while self.matched and self._stop[self.matched] != char:
            self.matched = self._fallback[self.matched]
        self.matched += self._stop[self.matched] == char
        return self.matched == self.length
