"""A target whose opinion is a float64 table over the last ids, and a cache that remembers what it was told."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from dspark_cli.engine.contracts import Rows, Verification


class RecordingCache:
    """The ids of the rows held, nothing else; refuses a cut that is no cut."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.ids), f"cannot keep {length} of {len(self.ids)} rows"
        del self.ids[length:]


class TableTarget:
    """Logits [V] float64 looked up by the last ``order`` ids (fewer at the start of the context).

    Tap L of a row is the one-hot [V] of its own id, whatever L, so that a drafter can prove that it was handed the
    taps of the ids that it was told.

    Args:
        vocab_size: V.
        seed: of the table, independent standard normal logits times ``scale``.
    """

    def __init__(
        self, vocab_size: int = 4, seed: int = 0, *, order: int = 2, scale: float = 1.5, context_length: int = 64
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.order = order
        self.forward_widths: list[list[int]] = []
        generator = torch.Generator().manual_seed(seed)
        shape = [vocab_size + 1] * order + [vocab_size]
        self.table = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        self.tap_dtype = torch.float64

    def logits_after(self, ids: Seq[int]) -> Tensor:
        """The opinion [V] on the token after ``ids``."""
        recent = [*[self.vocab_size] * self.order, *ids][-self.order :]
        return self.table[tuple(recent)]

    def new_cache(self) -> RecordingCache:
        return RecordingCache()

    def forward(self, blocks: Seq[Rows], taps: tuple[int, ...] = ()) -> list[Verification]:
        self.forward_widths.append([len(block.ids) for block in blocks])
        assert len({id(block.cache) for block in blocks}) == len(blocks), "one cache stands in two blocks"
        return [self._read(block, taps) for block in blocks]

    def _read(self, block: Rows, taps: tuple[int, ...]) -> Verification:
        cache = block.cache
        assert isinstance(cache, RecordingCache)
        assert block.ids, "a block without rows"
        assert all(0 <= token < self.vocab_size for token in block.ids)
        assert 0 <= block.logits_from < len(block.ids)
        assert cache.length + len(block.ids) <= self.context_length
        rows = []
        for token in block.ids:
            cache.ids.append(token)
            rows.append(self.logits_after(cache.ids[-self.order :]))
        tapped = one_hot(block.ids, self.vocab_size, len(taps), self.tap_dtype) if taps else None
        return Verification(torch.stack(rows[block.logits_from :]), tapped)


def one_hot(ids: Seq[int], vocab_size: int, taps: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """What :class:`TableTarget` taps for ``ids``: [n, taps · V]."""
    return torch.eye(vocab_size, dtype=dtype)[list(ids)].repeat(1, taps)
