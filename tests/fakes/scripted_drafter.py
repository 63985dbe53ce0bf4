"""A drafter whose every opinion is a float64 table: a stand-in for DSpark that depends on all that DSpark may see."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from dspark_cli.engine.contracts import Cache, Draft, DraftLaw
from tests.fakes.scripted_target import RecordingCache, one_hot


class TableDrafter:
    """Slot k's logits and confidence depend on the newest context row, the anchor, k and x_{k−1}.

    Args:
        block_size: γ.
        confident: whether it has a confidence head.
        sequential: without it slot k does not see x_{k−1}, like a drafter without a Markov head.
    """

    taps = (0, 2)

    def __init__(
        self, vocab_size: int = 4, seed: int = 100, *, block_size: int = 2, confident: bool = True,
        sequential: bool = True, scale: float = 1.2,
    ) -> None:  # fmt: skip
        self.block_size = block_size
        self.has_confidence = confident
        self.kind = "dspark" if sequential else "parallel"
        self._vocab_size = vocab_size
        generator = torch.Generator().manual_seed(seed)
        # Indexed by newest context row (or none), anchor, slot, previous token.
        shape = [vocab_size + 1, vocab_size, block_size, vocab_size, vocab_size]
        logits = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        confidence = torch.randn(shape[:-1], generator=generator, dtype=torch.float64)
        if not sequential:
            logits = logits[:, :, :, :1].expand(shape)
            confidence = confidence[:, :, :, :1].expand(shape[:-1])
        self._logits, self._confidence = logits, confidence

    def new_context(self) -> RecordingCache:
        return RecordingCache()

    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        assert isinstance(context, RecordingCache)
        assert taps is not None
        assert torch.equal(taps, one_hot(ids, self._vocab_size, len(self.taps))), "taps of other ids"
        context.ids.extend(ids)

    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        assert isinstance(context, RecordingCache)
        newest = context.ids[-1] if context.ids else self._vocab_size
        tokens: list[int] = []
        qs: list[Tensor | None] = []
        logits_of: list[float] = []
        given: list[float | None] = []
        previous = anchor
        for slot in range(min(slots, self.block_size)):
            place = (newest, anchor, slot, previous)
            logits_of.append(float(self._confidence[place]))
            previous, q, chance = law.choose(self._logits[place], tokens)
            tokens.append(previous)
            qs.append(q)
            given.append(chance)
        confident = tuple(1 / (1 + math.exp(-value)) for value in logits_of)
        certain = any(q is None for q in qs)
        return Draft(
            tokens=tuple(tokens),
            q=None if certain else tuple(q for q in qs if q is not None),
            confidence=confident if self.has_confidence else None,
            confidence_logits=tuple(logits_of) if self.has_confidence else None,
            q_drafted=None if None in given else tuple(chance for chance in given if chance is not None),
        )
