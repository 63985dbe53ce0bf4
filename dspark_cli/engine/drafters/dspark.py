"""The DSpark drafter: a parallel backbone that reads the target's features, and a light chain over its slots.

The backbone sees, for each token that the target has read, one context row made from the outputs of the tapped
layers, and after them the block [anchor, mask, mask, …]. Within the block attention is not causal. Slot j predicts
the token after position j of the block, so a block of γ rows drafts γ tokens. The Markov head then walks along the
slots and tells each one what was drawn before it; without one the drafter is plainly parallel.

The draft head may have fewer rows than the target has tokens; the tokens of a draft are in target ids all the same.

Notation: V vocabulary size, V_draft rows of the draft head, H hidden size, T number of tapped layers, D head dimension,
γ block size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

import torch
from dspark_kernels import KernelSet
from torch import Tensor

from dspark_cli.engine.contracts import Cache, Draft, DraftLaw
from dspark_cli.engine.drafters.confidence_head import calibrated, open_confidence_head
from dspark_cli.engine.drafters.markov_head import open_markov_head
from dspark_cli.engine.kv_cache import KVCache
from dspark_cli.engine.layers import DecoderLayer, RotaryTable, read_tensor
from dspark_cli.engine.model_config import Calibration, DrafterConfig, WeightSource
from dspark_cli.errors import CheckpointError

RowMap = Callable[[Tensor], Tensor]
T = TypeVar("T")


class DSparkDrafter:
    """A drafter in the DeepSpec layout (``contracts.Drafter``).

    Args:
        config: its shape.
        weights: its tensors, by their DeepSpec names.
        kernels: the compute kernels.
        device: where weights and context rows live.
        dtype: of weights and activations.
        embed: the target's embedding, ids [n] → [n, H]; used where the file has none of its own.
        head: the target's head, rows [n, H] → [n, V_draft]; used where the file has none of its own.
        draft_ids: int64 [V_draft], the target id of each row of the draft head; None where they are the same.
        calibration: of the confidences; none takes them as they are.

    Raises:
        CheckpointError: a tensor is missing or has another shape than the config says, or the calibration does not
            fit.
    """

    def __init__(
        self,
        config: DrafterConfig,
        weights: WeightSource,
        kernels: KernelSet,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        embed: RowMap | None = None,
        head: RowMap | None = None,
        draft_ids: Tensor | None = None,
        calibration: Calibration = Calibration(),  # noqa: B008 (frozen)
    ) -> None:
        _check(config, draft_ids, calibration)
        self.config = config
        self._kernels = kernels
        self._device = torch.device(device)
        self._dtype = dtype
        self.calibration = calibration
        self._draft_ids = None if draft_ids is None else draft_ids.to(self._device)
        shape, hidden = config.layer, config.layer.hidden_size

        def read(name: str, *size: int) -> Tensor:
            return read_tensor(weights, name, size).to(self._device, dtype)

        if embed is None or "embed_tokens.weight" in weights:
            embed = read("embed_tokens.weight", config.vocab_size, hidden).__getitem__
        if head is None or "lm_head.weight" in weights:
            head = kernels.pack_linear(read("lm_head.weight", config.draft_vocab_size, hidden), None)
        self._embed, self._head = embed, head
        self._join = kernels.pack_linear(read("fc.weight", hidden, len(config.taps) * hidden), None)
        self._context_norm = read("hidden_norm.weight", hidden)
        self._norm = read("norm.weight", hidden)
        self._rotary = RotaryTable(shape.rope, shape.head_dim, self._device)
        self._layers = [
            DecoderLayer(shape, weights, f"layers.{i}.", kernels, self._device, dtype, context_rows=True)
            for i in range(config.layers)
        ]
        self._markov = open_markov_head(config, weights, self._device, dtype)
        self._confidence = open_confidence_head(config, weights, self._device, dtype)

    @property
    def kind(self) -> str:
        """``dspark``, or ``parallel`` without a Markov head."""
        return "parallel" if self._markov is None else "dspark"

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    @property
    def has_confidence(self) -> bool:
        return self._confidence is not None

    def new_context(self) -> KVCache:
        shape = self.config.layer
        return KVCache(self.config.layers, shape.kv_heads, shape.head_dim, self._device, self._dtype)

    @torch.inference_mode()
    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        """Append a context row for each row of ``taps`` [n, T·H]; see ``contracts.Drafter``."""
        cache = _as_kv(context)
        if taps is None or taps.shape[0] != len(ids):
            raise ValueError(f"{len(ids)} tokens need as many rows of taps, not {taps if taps is None else len(taps)}")
        if not ids:
            return
        rows = self._kernels.rms_norm(self._join(taps.to(self._dtype)), self._context_norm, self.config.layer.norm_eps)
        rotation = self._rotary.span(cache.length, cache.length + len(ids))
        room = cache.reserve(len(ids))
        for index, layer in enumerate(self._layers):
            room.write(index, *layer.kv(rows, rotation))
        cache.commit(len(ids))

    @torch.inference_mode()
    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        """Draft at most ``slots`` tokens after ``anchor``; see ``contracts.Drafter``.

        The block is always computed whole: its slots see each other, so a shorter one would give other drafts.
        """
        count = min(slots, self.block_size)
        if count <= 0:
            return Draft()
        return self._draw(self._block(_as_kv(context), anchor)[:count], anchor, law)

    def _block(self, cache: KVCache, anchor: int) -> Tensor:
        """The normed output rows [γ, H] of the block. Its keys and values are never committed to ``cache``."""
        config = self.config
        ids = [anchor] + [config.mask_token_id] * (config.block_size - 1)
        x = self._embed(torch.tensor(ids, dtype=torch.int64, device=self._device))
        rotation = self._rotary.span(cache.length, cache.length + config.block_size)
        room = cache.reserve(config.block_size)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(x, rotation)
            x = layer.finish(x, layer.attend(q, *room.write(index, k, v)))
        return self._kernels.rms_norm(x, self._norm, config.layer.norm_eps)

    def _draw(self, hidden: Tensor, anchor: int, law: DraftLaw) -> Draft:
        """Draw a token for each row of ``hidden`` [n, H], one after the other, beginning after ``anchor``."""
        markov = self._markov
        state = markov.first_state() if markov is not None else None
        tokens: list[int] = []
        embeddings: list[Tensor] = []
        laws: list[Tensor | None] = []
        given: list[float | None] = []
        previous = anchor
        for own, logits in zip(hidden.unbind(0), self._head(hidden).unbind(0), strict=True):
            if markov is not None:
                logits, embedding, state = markov.add(logits, previous, own, state)
                embeddings.append(embedding)
            previous, q, probability = law.choose(logits, tokens, self._draft_ids)
            tokens.append(previous)
            laws.append(q)
            given.append(probability)
        confidence_logits = self._confidence_logits(hidden, embeddings)
        drawn_from = _all_or_none(laws)
        temperatures = self.calibration.greedy if drawn_from is None else self.calibration.sampling
        return Draft(
            tokens=tuple(tokens),
            q=drawn_from,
            confidence=None if confidence_logits is None else calibrated(confidence_logits, temperatures),
            confidence_logits=confidence_logits,
            q_drafted=_all_or_none(given),
        )

    def _confidence_logits(self, hidden: Tensor, embeddings: list[Tensor]) -> tuple[float, ...] | None:
        """Raw logits of all slots at once: slot k reads its own row and the token before it, never x_k."""
        if self._confidence is None:
            return None
        logits = self._confidence.logits(hidden, torch.stack(embeddings) if embeddings else None)
        return tuple(logits.tolist())


def _all_or_none(values: list[T | None]) -> tuple[T, ...] | None:
    """The values of all slots, or None where any slot has none."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _check(config: DrafterConfig, draft_ids: Tensor | None, calibration: Calibration) -> None:
    size = config.vocab_size if draft_ids is None else len(draft_ids)
    if size != config.draft_vocab_size:
        raise CheckpointError(
            f"the drafter drafts from {config.draft_vocab_size} of the target's {config.vocab_size} tokens, and the "
            f"target ids of {size} are given",
            "download the drafter again",
        )
    for temperatures in (calibration.greedy, calibration.sampling):
        if temperatures is None:
            continue
        if len(temperatures) != config.block_size:
            raise CheckpointError(
                f"the calibration has {len(temperatures)} temperatures for a block of {config.block_size} slots",
                "calibrate this drafter again or remove the calibration file",
            )
        if not all(0 < temperature < math.inf for temperature in temperatures):
            raise CheckpointError(
                f"the calibration's temperatures must be above 0 and finite, not {temperatures}",
                "calibrate this drafter again or remove the calibration file",
            )


def _as_kv(context: Cache) -> KVCache:
    if not isinstance(context, KVCache):
        raise TypeError(f"a DSpark drafter needs its own context, not {type(context).__name__}")
    return context
