"""Prompt lookup: the draft is what followed the last time that the text ended like now. Works with any target.

Where the newest tokens (the anchor included) stood before, the tokens that followed are the draft. The longest
match wins, among equal ones the latest. An index of where each n-gram ended makes a round cost O(γ), whatever the
length of the context. (Prompt lookup decoding, A. Saxena, 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from dspark_cli.engine.contracts import Cache, Draft, DraftLaw


class NgramContext:
    """The ids read so far, and for each n-gram among them the places where it ended, in rising order."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self.ids: list[int] = []
        self._sizes = range(min_ngram, max_ngram + 1)
        self._ends: dict[tuple[int, ...], list[int]] = {}

    @property
    def length(self) -> int:
        return len(self.ids)

    def append(self, token: int) -> None:
        """Read one token more."""
        self.ids.append(token)
        end = len(self.ids)
        for size in self._sizes:
            if size <= end:
                self._ends.setdefault(tuple(self.ids[end - size :]), []).append(end)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` ids; the index forgets the n-grams that ended after them."""
        if not 0 <= length <= len(self.ids):
            raise ValueError(f"cannot keep {length} of {len(self.ids)} ids")
        for end in range(len(self.ids), length, -1):
            for size in self._sizes:
                if size <= end:
                    ngram = tuple(self.ids[end - size : end])
                    ends = self._ends[ngram]
                    ends.pop()
                    if not ends:
                        del self._ends[ngram]
        del self.ids[length:]

    def last_match(self, anchor: int) -> int | None:
        """Where the longest earlier match of the newest tokens and ``anchor`` ended; None without a match."""
        for size in reversed(self._sizes):
            if size > len(self.ids):
                continue
            tail = self.ids[len(self.ids) - size + 1 :]
            ends = self._ends.get((*tail, anchor))
            if ends:
                return ends[-1]
        return None


class NgramDrafter:
    """Drafts up to ``block_size`` tokens from the context itself; certain, so without q and without confidence.

    Args:
        block_size: most tokens a draft (γ). 7 makes a verification of 8 rows, which costs hardly more than one row.
        max_ngram: longest ending looked for.
        min_ngram: shortest ending that counts as a match; single tokens match too often by chance.
    """

    kind = "ngram"
    taps: tuple[int, ...] = ()
    has_confidence = False

    def __init__(self, block_size: int = 7, max_ngram: int = 4, min_ngram: int = 2) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"1 ≤ min_ngram ≤ max_ngram must hold, not {min_ngram} and {max_ngram}")
        self.block_size = block_size
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram

    def new_context(self) -> NgramContext:
        return NgramContext(self._min_ngram, self._max_ngram)

    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        held = _as_ngram(context)
        for token in ids:
            held.append(token)

    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        held = _as_ngram(context)
        count = min(slots, self.block_size)
        match = held.last_match(anchor) if count > 0 else None
        if match is None:
            return Draft()
        # A match close to the end runs into the anchor and then into the draft: a period goes on repeating.
        text = [*held.ids[match : match + count], anchor]
        while len(text) < count:
            text.append(text[len(text) - (held.length + 1 - match)])
        return Draft(tokens=tuple(text[:count]))


def _as_ngram(context: Cache) -> NgramContext:
    if not isinstance(context, NgramContext):
        raise TypeError(f"an n-gram drafter needs its own context, not {type(context).__name__}")
    return context
