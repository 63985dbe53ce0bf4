"""A target in torch: rows of several sequences in, logits and taps out."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from dspark_kernels import KernelSet, Linear
from torch import Tensor

from dspark_cli.engine.contracts import Rows, Verification
from dspark_cli.engine.kv_cache import KVCache
from dspark_cli.engine.model_config import TargetConfig, WeightSource
from dspark_cli.engine.targets.transformer import Span, Transformer


class TorchTarget:
    """See ``contracts.Target``. Logits and taps have the dtype of the model.

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
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        self._model = Transformer(config, weights, kernels, device, dtype)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        return self.config.context_length

    @property
    def embedding(self) -> Tensor:
        """The embedding table [V, H], for a drafter to share."""
        return self._model.embedding

    @property
    def head(self) -> Linear:
        """The head alone, hidden rows [n, H] → logits [n, V], for a drafter to share (no final norm)."""
        return self._model.head

    def embed(self, ids: Seq[int]) -> Tensor:
        """``ids`` → [n, H]."""
        return self._model.embed(torch.tensor(ids, dtype=torch.int64, device=self.device))

    def new_cache(self) -> KVCache:
        shape = self.config.layer
        return KVCache(self.config.layers, shape.kv_heads, shape.head_dim, self.device, self.dtype)

    @torch.inference_mode()
    def forward(self, blocks: Seq[Rows], taps: tuple[int, ...] = ()) -> list[Verification]:
        """Read the rows of all ``blocks`` in one pass, appending to their caches.

        Raises:
            ValueError: no rows, two blocks with the same cache, or a tap that the model does not have.
        """
        self._check(blocks, taps)
        ids = torch.tensor([token for block in blocks for token in block.ids], device=self.device)
        spans = [Span(_own(block), len(block.ids)) for block in blocks]
        x, tapped = self._model.run_layers(ids, spans, taps)
        sizes = [span.rows for span in spans]
        tap_parts: Seq[Tensor | None] = [None] * len(sizes) if tapped is None else tapped.split_with_sizes(sizes)
        return [Verification(*pair) for pair in zip(self._logits(x, blocks), tap_parts, strict=True)]

    def _logits(self, x: Tensor, blocks: Seq[Rows]) -> Seq[Tensor]:
        """Logits of the wanted rows of each block."""
        wanted = [len(block.ids) - block.logits_from for block in blocks]
        if sum(wanted) < x.shape[0]:
            parts = zip(x.split_with_sizes([len(block.ids) for block in blocks]), blocks, strict=True)
            x = torch.cat([rows[block.logits_from :] for rows, block in parts])
        if not x.shape[0]:
            return [x.new_empty((0, self.vocab_size))] * len(blocks)
        return self._model.logits(x).split_with_sizes(wanted)

    def _check(self, blocks: Seq[Rows], taps: tuple[int, ...]) -> None:
        if not blocks or not all(block.ids for block in blocks):
            raise ValueError("a forward pass needs at least one row of each sequence")
        if len({id(block.cache) for block in blocks}) < len(blocks):
            raise ValueError("two blocks of one forward pass share a cache")
        if not all(0 <= block.logits_from <= len(block.ids) for block in blocks):
            raise ValueError("logits_from lies outside the block")
        if not all(-1 <= tap < self.config.layers for tap in taps):
            raise ValueError(f"taps {taps} are not all among -1 … {self.config.layers - 1}")


def _own(block: Rows) -> KVCache:
    if not isinstance(block.cache, KVCache):
        raise TypeError(f"a torch target cannot append to a {type(block.cache).__name__}")
    return block.cache
