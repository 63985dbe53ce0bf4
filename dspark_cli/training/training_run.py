"""Puts a run together: features and target in, a trainer out."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dspark_cli.engine.model_config import DrafterConfig
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.training.anchor_blocks import (
    AnchorBatch,
    AnchorSampler,
    BlockMaker,
    CachedSequence,
    sequences_of,
    tap_columns,
)
from dspark_cli.training.draft_model import DraftModel
from dspark_cli.training.feature_cache import FeatureCache
from dspark_cli.training.target_parts import TargetParts, cached_log_mass, draft_vocabulary, start_weights
from dspark_cli.training.trainer import Course, HeldOutPart, Tell, Trainer, faster_type, kept_draft_ids

_HELD_OUT_EVERY = 40
_FEWEST_SEQUENCES = 8


@dataclass(frozen=True)
class DrafterShape:
    """What to build. ``draft_vocabulary`` 0 is the whole one; ``taps`` empty means all that the features hold.

    ``precision`` is ``float32``, ``bfloat16`` or ``auto``, which takes the faster one.
    """

    mask_token_id: int
    layers: int = 2
    block_size: int = 6
    rank: int = 64
    head: str = "vanilla"
    confidence: bool = True
    draft_vocabulary: int = 8192
    taps: tuple[int, ...] = ()
    from_target: bool = True
    precision: str = "auto"
    anchors_per_batch: int = 640
    anchors_per_sequence: int = 64


@dataclass
class SequenceSplit:
    """Cached sequences: every 40th is held out, at most ``most_held_out``; the rest is learned from."""

    cache: FeatureCache
    target: TargetParts
    compute: torch.dtype
    tell_mass: Callable[[int, int], None]
    most_held_out: int = 32

    def read(self) -> tuple[list[CachedSequence], list[CachedSequence]]:
        """(learned from, held out) of all shards that are there now; what was there before keeps its place."""
        self.cache = FeatureCache(self.cache.folder, self.cache.origin)
        mass = cached_log_mass(self.cache, self.target, self.compute, self.tell_mass)
        every = sequences_of(self.cache, mass)
        held = set(range(0, len(every), _HELD_OUT_EVERY)[: self.most_held_out])
        return [one for i, one in enumerate(every) if i not in held], [every[i] for i in sorted(held)]


def drafter_config(shape: DrafterShape, target: TargetParts, cached_taps: tuple[int, ...]) -> DrafterConfig:
    """The config of the drafter to be made.

    Raises:
        UsageError: a tap is not cached or is the final layer, or a number is out of range.
    """
    final = target.config.layers - 1
    taps = shape.taps or tuple(tap for tap in cached_taps if tap != final)
    if final in taps:
        raise UsageError(f"layer {final} is the last one and cannot be a tap", f"give taps below {final}")
    if missing := sorted(set(taps) - set(cached_taps)):
        raise UsageError(f"the features do not hold the taps {missing}", f"choose among {list(cached_taps[:-1])}")
    if list(taps) != sorted(set(taps)):
        raise UsageError("taps must rise, each given once", "sort them")
    vocabulary = target.config.vocab_size
    size = shape.draft_vocabulary or vocabulary
    if not 1 <= size <= vocabulary:
        raise UsageError(f"the draft vocabulary cannot have {size} ids", f"the target has {vocabulary}")
    with_head = shape.head != "none" and shape.rank > 0
    return DrafterConfig(
        layer=replace(target.config.layer, qk_norm=True),
        layers=shape.layers,
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        taps=taps,
        target_layers=target.config.layers,
        vocab_size=vocabulary,
        draft_vocab_size=size,
        head=shape.head if with_head else "none",
        markov_rank=shape.rank if with_head else 0,
        confidence_head=shape.confidence,
        confidence_with_markov=shape.confidence and with_head,
    )


def open_run(
    cache: FeatureCache, target: TargetParts, shape: DrafterShape, course: Course, stop_ids: frozenset[int],
    run: Path, tell: Tell, tell_mass: Callable[[int, int], None], *, growing: bool = False,
) -> Trainer:  # fmt: skip
    """A trainer for the run in folder ``run``, new or begun before (then call its ``resume``).

    ``growing`` takes in shards that are added while it runs. ``tell_mass`` is shown the progress of the first pass
    over the features.

    Raises:
        DsparkError: too few sequences, or options that cannot be meant.
    """
    config = drafter_config(shape, target, cache.origin.taps)
    compute = choose_type(shape.precision, config)
    split = SequenceSplit(cache, target, compute, tell_mass)
    learned, held = split.read()
    if len(learned) < _FEWEST_SEQUENCES:
        raise DsparkError(f"{len(learned)} usable replies are too few to learn from", "give or make more prompts")
    begun, draft_ids = kept_draft_ids(run)
    if not begun and config.draft_vocab_size < config.vocab_size:
        draft_ids = draft_vocabulary(reply_counts(learned, config.vocab_size), config.draft_vocab_size, stop_ids)
    head = target.head if draft_ids is None else target.head[draft_ids]
    model = DraftModel(config, target.embedding, head.contiguous(), compute)
    start_weights(model, target, course.seed, shape.from_target)
    hidden = config.layer.hidden_size
    blocks = BlockMaker(config.block_size, hidden, tap_columns(config.taps, cache.origin.taps, hidden))
    sampler = AnchorSampler(
        learned, course.seed, shape.anchors_per_batch, shape.anchors_per_sequence, blocks,
        (lambda: split.read()[0]) if growing else None,
    )  # fmt: skip
    return Trainer(model, target, draft_ids, sampler, held_out_parts(held, blocks), course, run, tell)


def choose_type(precision: str, config: DrafterConfig) -> torch.dtype:
    if precision == "auto":
        return faster_type(config.layer.hidden_size, config.layer.intermediate_size)
    if precision not in ("float32", "bfloat16"):
        raise UsageError(f"unknown precision {precision}", "give auto, float32 or bfloat16")
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def reply_counts(sequences: Seq[CachedSequence], vocabulary: int) -> Tensor:
    """How often each id stands in a reply, int64 [V]."""
    ids = torch.cat([one.ids[one.reply_start :] for one in sequences])
    return torch.bincount(ids.long(), minlength=vocabulary)


def held_out_parts(sequences: Seq[CachedSequence], blocks: BlockMaker) -> list[HeldOutPart]:
    """Every fourth anchor of each sequence, a few sequences a batch."""
    parts = []
    for first in range(0, len(sequences), 4):
        some = [(one, torch.tensor(one.anchors[::4])) for one in sequences[first : first + 4]]
        batch: AnchorBatch = blocks.make(some)
        greedy = torch.cat([torch.full((len(at),), one.greedy) for one, at in some])
        parts.append(HeldOutPart(batch, greedy))
    return parts
