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
from dspark_cli.training.export import drafter_layer
from dspark_cli.training.feature_cache import FeatureCache
from dspark_cli.training.target_parts import TargetParts, cached_log_mass, draft_vocabulary, start_weights
from dspark_cli.training.trainer import Begun, Course, HeldOutPart, Tell, Trainer, begun_run, faster_type

_HELD_OUT_EVERY = 40
_CPU = torch.device("cpu")
FEWEST_SEQUENCES = 8
HEADS = ("vanilla", "gated", "rnn", "none")
PRECISIONS = ("auto", "float32", "bfloat16")


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
    anchors_per_batch: int = 384
    anchors_per_sequence: int = 48

    def check(self) -> None:
        """Raises UsageError for a number that cannot be meant."""
        for name, value, least in (
            ("--layers", self.layers, 1),
            ("--block-size", self.block_size, 1),
            ("--rank", self.rank, 0 if self.head == "none" else 1),
            ("--draft-vocabulary", self.draft_vocabulary, 0),
            ("--batch", self.anchors_per_batch, 1),
        ):
            if value < least:
                raise UsageError(f"{name} {value} is too small", f"give {least} or more")
        if self.head not in HEADS:
            raise UsageError(f"there is no head {self.head!r}", f"the kinds are {', '.join(HEADS)}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"unknown precision {self.precision!r}", f"the kinds are {', '.join(PRECISIONS)}")


@dataclass
class SequenceSplit:
    """Cached sequences: every 40th is held out, at most ``most_held_out``; the rest is learned from."""

    cache: FeatureCache
    target: TargetParts
    compute: torch.dtype
    device: torch.device
    tell_mass: Callable[[int, int], None]
    most_held_out: int = 32

    def read(self) -> tuple[list[CachedSequence], list[CachedSequence]]:
        """(learned from, held out) of all shards that are there now; what was there before keeps its place."""
        self.cache = FeatureCache(self.cache.folder, self.cache.origin)
        mass = cached_log_mass(self.cache, self.target, self.compute, self.device, self.tell_mass)
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
    check_taps(taps, target.config.layers)
    if missing := sorted(set(taps) - set(cached_taps)):
        raise UsageError(f"the features do not hold the taps {missing}", f"choose among {list(cached_taps[:-1])}")
    vocabulary = target.config.vocab_size
    size = shape.draft_vocabulary or vocabulary
    if not 1 <= size <= vocabulary:
        raise UsageError(f"the draft vocabulary cannot have {size} ids", f"the target has {vocabulary}")
    with_head = shape.head != "none" and shape.rank > 0
    return DrafterConfig(
        layer=drafter_layer(target.config.layer),
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
    device: torch.device = _CPU,
) -> Trainer:  # fmt: skip
    """A trainer for the run in folder ``run``, new or begun before (then call its ``resume``).

    ``growing`` takes in shards that are added while it runs. ``tell_mass`` is shown the progress of the first pass
    over the features.

    Raises:
        DsparkError: too few sequences, or options that cannot be meant.
    """
    shape.check()
    course.check()
    config = drafter_config(shape, target, cache.origin.taps)
    begun = begun_run(run)
    compute = choose_type(shape.precision, config, device, begun)
    split = SequenceSplit(cache, target, compute, device, tell_mass)
    learned, held = split.read()
    if len(learned) < FEWEST_SEQUENCES:
        raise DsparkError(f"{len(learned)} usable replies are too few to learn from", "give or make more prompts")
    draft_ids = None if begun is None else begun.draft_ids
    if begun is None and config.draft_vocab_size < config.vocab_size:
        draft_ids = draft_vocabulary(reply_counts(learned, config.vocab_size), config.draft_vocab_size, stop_ids)
    head = target.head if draft_ids is None else target.head[draft_ids]
    model = DraftModel(config, target.embedding.to(device), head.contiguous().to(device), compute)
    start_weights(model, target, course.seed, shape.from_target)
    hidden = config.layer.hidden_size
    blocks = BlockMaker(config.block_size, hidden, tap_columns(config.taps, cache.origin.taps, hidden))
    sampler = AnchorSampler(
        learned, course.seed, shape.anchors_per_batch, shape.anchors_per_sequence, blocks,
        (lambda: split.read()[0]) if growing else None,
    )  # fmt: skip
    return Trainer(model, target, draft_ids, sampler, held_out_parts(held, blocks), course, run, tell)


def check_taps(taps: Seq[int], layers: int) -> None:
    """Raises UsageError where ``taps`` are none that a drafter of a target with so many layers may have."""
    final = layers - 1
    if final in taps:
        raise UsageError(f"layer {final} is the last one and cannot be a tap", f"give taps below {final}")
    if not all(-1 <= tap < final for tap in taps):
        raise UsageError(f"the taps {list(taps)} are not all layers of the model", f"give some from -1 to {final - 1}")
    if list(taps) != sorted(set(taps)):
        raise UsageError("taps must rise, each given once", "sort them")


def with_mask(
    shape: DrafterShape, cache: FeatureCache, special: frozenset[int], stop_ids: frozenset[int]
) -> DrafterShape:
    """``shape`` with a mask token: the lowest special id that the text never has, else the lowest id at all.

    A mask token is given as −1 where it is to be chosen.
    """
    vocabulary = cache.origin.vocab_size
    if shape.mask_token_id >= vocabulary or shape.mask_token_id < -1:
        raise UsageError(f"the mask token {shape.mask_token_id} is no token", f"give one from 0 to {vocabulary - 1}")
    if shape.mask_token_id >= 0:
        return shape
    # Of the first shard alone, so that more text does not choose another one.
    seen = torch.bincount(cache.read(cache.shards[0]).ids.long(), minlength=vocabulary) > 0
    unused = [token for token in range(vocabulary) if not seen[token] and token not in stop_ids]
    if not unused:
        raise UsageError("every token of the model is in use", "choose one with --mask-token")
    chosen = next((token for token in unused if token in special), unused[0])
    return replace(shape, mask_token_id=chosen)


def choose_type(precision: str, config: DrafterConfig, device: torch.device, begun: Begun | None = None) -> torch.dtype:
    """The type of products that ``precision`` means on ``device``; ``auto`` keeps to what a run began with."""
    if precision == "auto" and begun is not None:
        return begun.compute
    if precision == "auto":
        return faster_type(config.layer.hidden_size, config.layer.intermediate_size, device)
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
