"""Keys and values of one sequence, for every layer: grown by rows, cut back by length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_CAPACITY = 256


@dataclass(frozen=True)
class CacheRows:
    """Room for new rows after those held, a list entry a layer; all are views into the cache.

    ``keys`` and ``values`` [kv_heads, held + n, D] are what attention reads once the new rows are written;
    ``new_keys`` and ``new_values`` [n, kv_heads, D] are the new rows themselves.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    new_keys: tuple[Tensor, ...]
    new_values: tuple[Tensor, ...]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``k`` and ``v`` [n, kv_heads, D] as the new rows of ``layer``; returns all its keys and values."""
        self.new_keys[layer].copy_(k)
        self.new_values[layer].copy_(v)
        return self.keys[layer], self.values[layer]


class KVCache:
    """The rows that a sequence has been read to. Cutting back copies nothing; growing doubles the room."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._length = 0
        # Keys, then values: [2, layers, kv_heads, capacity, D].
        self._data = torch.empty((2, layers, kv_heads, 0, head_dim), device=device, dtype=dtype)

    @property
    def length(self) -> int:
        """Number of rows held."""
        return self._length

    @property
    def capacity(self) -> int:
        """Number of rows for which there is memory."""
        return self._data.shape[3]

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` rows (0 ≤ length ≤ self.length)."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot cut a cache of {self._length} rows to {length}")
        self._length = length

    def reserve(self, rows: int) -> CacheRows:
        """Room for ``rows`` more rows. They count only after :meth:`commit`; until then each reserve starts anew."""
        stop = self._length + rows
        self._reach(stop)
        held = self._data[:, :, :, :stop]
        keys, values = held.unbind(0)
        new_keys, new_values = held[:, :, :, self._length :].transpose(2, 3).unbind(0)
        return CacheRows(keys.unbind(0), values.unbind(0), new_keys.unbind(0), new_values.unbind(0))

    def commit(self, rows: int) -> None:
        """Count ``rows`` reserved rows, which every layer has written, as held."""
        if self._length + rows > self.capacity:
            raise ValueError("more rows committed than reserved")
        self._length += rows

    def _reach(self, rows: int) -> None:
        if rows <= self.capacity:
            return
        capacity = max(rows, 2 * self.capacity, FIRST_CAPACITY)
        grown = self._data.new_empty((*self._data.shape[:3], capacity, self._data.shape[4]))
        grown[:, :, :, : self._length] = self._data[:, :, :, : self._length]
        self._data = grown
