"""The decoder-only transformer of the Llama, Qwen2, Qwen3, Mistral and SmolLM2 families, by config alone."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from dspark_kernels import KernelSet, Linear
from torch import Tensor
from torch.nn import functional

from dspark_cli.engine.kv_cache import CacheRows, KVCache
from dspark_cli.engine.layers import DecoderLayer, RotaryTable, read_tensor
from dspark_cli.engine.model_config import TargetConfig, WeightSource


@dataclass(frozen=True)
class Span:
    """``rows`` flattened rows of one sequence, which follow those that ``cache`` holds."""

    cache: KVCache
    rows: int


class Transformer:
    """Embedding, layers, final norm and head.

    ``embedding`` [V, H] and ``head`` (a linear map [n, H] → [n, V], without the final norm) may be shared with a
    drafter. A tied head costs a packed copy of the embedding on the CPU.

    Raises:
        CheckpointError: a tensor is missing or does not fit ``config``.
    """

    def __init__(
        self,
        config: TargetConfig,
        weights: WeightSource,
        kernels: KernelSet,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = config.layer
        vocabulary = (config.vocab_size, shape.hidden_size)
        self.config = config
        self._kernels = kernels
        self.embedding = read_tensor(weights, "model.embed_tokens.weight", vocabulary).to(device, dtype)
        self._layers = [
            DecoderLayer(shape, weights, f"model.layers.{layer}.", kernels, device, dtype)
            for layer in range(config.layers)
        ]
        self._norm = read_tensor(weights, "model.norm.weight", (shape.hidden_size,)).to(device, dtype)
        head = self.embedding
        if not config.tied_head:
            head = read_tensor(weights, "lm_head.weight", vocabulary).to(device, dtype)
        self.head: Linear = kernels.pack_linear(head, None)
        self._rotary = RotaryTable(shape.rope, shape.head_dim, device)

    def embed(self, ids: Tensor) -> Tensor:
        """``ids`` [n] → [n, H]."""
        return functional.embedding(ids, self.embedding)

    def logits(self, x: Tensor) -> Tensor:
        """Outputs of the last layer [n, H] → [n, V]."""
        return self.head(self._kernels.rms_norm(x, self._norm, self.config.layer.norm_eps))

    def run_layers(self, ids: Tensor, spans: Seq[Span], taps: Seq[int] = ()) -> tuple[Tensor, Tensor | None]:
        """Read ``ids`` [n], the rows of all spans one after the other, and append them to the caches.

        All linear maps see all rows at once; attention goes span by span. Should anything fail, the caches keep
        their lengths.

        Returns:
            The output of the last layer [n, H], before the final norm, and the taps [n, T·H] or None.
        """
        x = self.embed(ids)
        attention = [_SpanAttention(span, self.config, x.dtype) for span in spans]
        rotation = self._rotation(spans)
        tapped: dict[int, Tensor] = {-1: x}
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(x, rotation)
            if len(attention) == 1:
                attended = attention[0].attend(index, layer, q, k, v)
            else:
                sizes = [span.rows for span in spans]
                pieces = zip(attention, *(rows.split_with_sizes(sizes) for rows in (q, k, v)), strict=True)
                attended = torch.cat([one.attend(index, layer, *qkv) for one, *qkv in pieces])
            x = layer.finish(x, attended)
            if index in taps:
                tapped[index] = x
        for span in spans:
            span.cache.commit(span.rows)
        return x, torch.cat([tapped[tap] for tap in taps], dim=-1) if taps else None

    def _rotation(self, spans: Seq[Span]) -> Tensor:
        parts = [self._rotary.span(span.cache.length, span.cache.length + span.rows) for span in spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class _SpanAttention:
    """Causal attention of one span in every layer, with that layer's window."""

    def __init__(self, span: Span, config: TargetConfig, dtype: torch.dtype) -> None:
        self._windows = config.sliding_windows
        self._held = span.cache.length
        self._rows = span.rows
        self._room: CacheRows = span.cache.reserve(span.rows)
        device = self._room.keys[0].device
        self._masks = {
            window: causal_mask(self._held, self._rows, window, device, dtype) for window in set(self._windows)
        }

    def attend(self, index: int, layer: DecoderLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write ``k`` and ``v``, then attend with ``q`` over all that is held: [rows, heads·D]."""
        keys, values = self._room.write(index, k, v)
        window = self._windows[index]
        first = first_seen(self._held, window)
        if first:
            keys, values = keys[:, first:], values[:, first:]
        return layer.attend(q, keys, values, self._masks[window])


def first_seen(held: int, window: int | None) -> int:
    """The first key that any row after ``held`` rows sees."""
    return 0 if window is None else max(0, held + 1 - window)


def causal_mask(held: int, rows: int, window: int | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """What row i = held … held + rows − 1 sees: the keys j with i − window < j ≤ i.

    Returns:
        [rows, held + rows − first_seen] of 0 and −inf, columns from :func:`first_seen` on; None for a single row,
        which sees all of these.
    """
    if rows == 1:
        return None
    first = first_seen(held, window)
    hidden = torch.full((rows, held + rows - first), -torch.inf, device=device, dtype=dtype)
    mask = hidden.triu(held - first + 1)
    return mask if window is None or window >= held + rows else mask + hidden.tril(held - first - window)
