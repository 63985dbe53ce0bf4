"""Batches to learn from: random anchors of cached sequences, and what stands in and around their blocks.

An anchor at position a of a sequence of n ids opens a block whose slot k predicts the id at a + k, from the context
rows before a and, by teacher forcing, the true id at a + k − 1. The target's opinion on that id comes from the last
tap at a + k − 1, which exists up to a + k = n − 1. Anchors lie in the reply, its last prompt token included.

Notation: A anchors, γ block size, C context rows, P law rows, H hidden size, T taps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dspark_cli.training.feature_cache import ShardTensors


@dataclass(frozen=True)
class CachedSequence:
    """One sequence of the cache: ``ids`` int32 [n], ``features`` [n, T'·H], the final layer's output last.

    ``log_mass`` [n] is the log-sum-exp of the target's logits after each id.
    """

    ids: Tensor
    features: Tensor
    log_mass: Tensor
    reply_start: int
    greedy: bool

    @property
    def anchors(self) -> range:
        """Positions that can be anchors: a context row before them, and a slot after them that can be judged."""
        return range(max(self.reply_start - 1, 1), len(self.ids) - 1)


@dataclass(frozen=True)
class Span:
    """Where one sequence of a batch lies: its context rows, its anchors."""

    context: slice
    anchors: slice


@dataclass(frozen=True)
class AnchorBatch:
    """Anchors of several sequences.

    ``taps`` [C, T·H] and ``context_at`` [C]: context rows and their positions. ``anchor_at``, ``anchor_ids`` [A].
    ``previous``, ``tokens`` [A, γ]: the true ids before and in each slot. ``valid`` [A, γ]: whether slot k lies
    within its sequence. ``law_rows`` [A, γ]: which of ``last`` [P, H], with ``log_mass`` [P], judges it.
    """

    taps: Tensor
    context_at: Tensor
    spans: list[Span]
    anchor_at: Tensor
    anchor_ids: Tensor
    previous: Tensor
    tokens: Tensor
    valid: Tensor
    law_rows: Tensor
    last: Tensor
    log_mass: Tensor

    def to(self, device: torch.device) -> AnchorBatch:
        """The same on another device."""
        if self.taps.device == device:
            return self
        moved: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        moved = {name: value.to(device) for name, value in moved.items() if isinstance(value, Tensor)}
        return replace(self, **moved)


def sequences_of(shards: Iterable[ShardTensors], log_mass: Seq[Tensor]) -> list[CachedSequence]:
    """The sequences that have room for an anchor; ``log_mass`` [N] one a shard."""
    found = []
    for shard, mass in zip(shards, log_mass, strict=True):
        edges = shard.starts.tolist()
        for index, (start, stop) in enumerate(pairwise(edges)):
            one = CachedSequence(
                shard.ids[start:stop],
                shard.features[start:stop],
                mass[start:stop],
                int(shard.reply_starts[index]),
                bool(shard.greedy[index]),
            )
            if len(one.anchors):
                found.append(one)
    return found


class AnchorSampler:
    """An endless row of batches, the same for the same seed and sequences.

    Sequences come in a new random order each epoch; of each, ``per_sequence`` anchors are drawn without
    replacement, or all if there are fewer. A batch holds about ``per_batch`` anchors. Before each epoch ``more``
    may hand over the sequences that have come since, old ones first and unchanged.
    """

    def __init__(
        self, sequences: Seq[CachedSequence], seed: int, per_batch: int, per_sequence: int, blocks: BlockMaker,
        more: Callable[[], Seq[CachedSequence]] | None = None,
    ) -> None:  # fmt: skip
        if not sequences:
            raise ValueError("no sequences to draw anchors from")
        self._sequences, self._seed, self._blocks, self._more = sequences, seed, blocks, more
        self._per_sequence = per_sequence
        self._at_once = max(1, round(per_batch / per_sequence))
        self._number = 0
        self._begin(0, len(sequences))

    def _begin(self, epoch: int, count: int) -> None:
        self._epoch, self._at = epoch, 0
        chance = _generator(self._seed, "epoch", epoch)
        self._order: list[int] = torch.randperm(count, generator=chance).tolist()

    def batch(self) -> AnchorBatch:
        """The next batch."""
        chance = _generator(self._seed, "batch", self._number)
        self._number += 1
        chosen = [self._next() for _ in range(self._at_once)]
        return self._blocks.make([(one, self._anchors(one, chance)) for one in chosen])

    def _next(self) -> CachedSequence:
        if self._at == len(self._order):
            if self._more is not None:
                self._sequences = self._more()
            self._begin(self._epoch + 1, len(self._sequences))
        self._at += 1
        return self._sequences[self._order[self._at - 1]]

    def _anchors(self, one: CachedSequence, chance: torch.Generator) -> Tensor:
        drawn = torch.randperm(len(one.anchors), generator=chance)[: self._per_sequence]
        return drawn.sort().values + one.anchors.start

    def state(self) -> dict[str, int]:
        """Where it stands, for :meth:`restore`."""
        return {"number": self._number, "epoch": self._epoch, "at": self._at, "count": len(self._order)}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where another one, made of the same sequences and perhaps fewer, stood."""
        if state["count"] > len(self._sequences):
            raise ValueError(f"{state['count']} sequences were there, now only {len(self._sequences)} are")
        self._begin(state["epoch"], state["count"])
        self._number, self._at = state["number"], state["at"]


def _generator(*name: object) -> torch.Generator:
    """A generator of its own for each ``name``. Torch's looks at the last 32 bits of a seed only, hence the hash."""
    digest = hashlib.blake2b(repr(name).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


@dataclass(frozen=True)
class BlockMaker:
    """Lays sequences and anchors out as a batch.

    ``tap_columns`` are the columns of the cached features that the drafter reads, None for all but the last H.
    """

    block_size: int
    hidden_size: int
    tap_columns: Tensor | None = None

    def make(self, chosen: Seq[tuple[CachedSequence, Tensor]]) -> AnchorBatch:
        """``chosen``: sequences with their anchors' positions [a], rising."""
        hidden, slots = self.hidden_size, torch.arange(self.block_size)
        taps, context_at, spans, last, mass = [], [], [], [], []
        anchor_at, anchor_ids, previous, tokens, valid, law_rows = [], [], [], [], [], []
        rows = anchors = laws = 0
        for one, at in chosen:
            end, first, count = len(one.ids) - 1, int(at[0]), len(at)
            context = int(at[-1])
            features = one.features[:context]
            taps.append(features[:, :-hidden] if self.tap_columns is None else features[:, self.tap_columns])
            context_at.append(torch.arange(context))
            spans.append(Span(slice(rows, rows + context), slice(anchors, anchors + count)))
            before = at.unsqueeze(1) + slots
            inside = before < end
            before = before.clamp(max=end - 1)
            anchor_at.append(at)
            anchor_ids.append(one.ids[at])
            previous.append(one.ids[before])
            tokens.append(one.ids[before + 1])
            valid.append(inside)
            law_rows.append(before - first + laws)
            stop = min(context + self.block_size, end)
            last.append(one.features[first:stop, -hidden:])
            mass.append(one.log_mass[first:stop])
            rows, anchors, laws = rows + context, anchors + count, laws + stop - first
        return AnchorBatch(
            torch.cat(taps).float(), torch.cat(context_at), spans, torch.cat(anchor_at), torch.cat(anchor_ids).long(),
            torch.cat(previous).long(), torch.cat(tokens).long(), torch.cat(valid), torch.cat(law_rows),
            torch.cat(last).float(), torch.cat(mass),
        )  # fmt: skip


def tap_columns(wanted: tuple[int, ...], cached: tuple[int, ...], hidden: int) -> Tensor | None:
    """Columns of ``wanted`` taps in features of ``cached`` taps, the final layer last; None where all are wanted.

    Raises:
        ValueError: a wanted tap is not in the cache, or is the final layer.
    """
    missing = set(wanted) - set(cached[:-1])
    if missing:
        raise ValueError(f"the features hold the taps {list(cached[:-1])}, not {sorted(missing)}")
    if wanted == cached[:-1]:
        return None
    return torch.cat([torch.arange(cached.index(tap) * hidden, (cached.index(tap) + 1) * hidden) for tap in wanted])
