from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.kv_cache import FIRST_CAPACITY, KVCache

LAYERS, HEADS, DIM = 2, 3, 4


def _append(cache: KVCache, start: int, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows whose values tell their layer, position and kind."""
    room = cache.reserve(rows)
    held = []
    for layer in range(LAYERS):
        at = torch.arange(start, start + rows, dtype=torch.float32).view(-1, 1, 1).expand(-1, HEADS, DIM)
        held.append(room.write(layer, at + 10_000 * layer, -at - 10_000 * layer))
    cache.commit(rows)
    return held


@given(st.lists(st.one_of(st.integers(1, 300), st.floats(0, 1)), max_size=12))
def test_holds_what_was_written_and_not_cut(steps: list[int | float]) -> None:
    cache, expected, written = KVCache(LAYERS, HEADS, DIM), [], 0
    for step in steps:
        if isinstance(step, int):
            held = _append(cache, written, step)
            expected += range(written, written + step)
            written += step
            for layer, (keys, values) in enumerate(held):
                assert keys.shape == values.shape == (HEADS, len(expected), DIM)
                want = torch.tensor(expected, dtype=torch.float32).view(1, -1, 1).expand_as(keys) + 10_000 * layer
                assert torch.equal(keys, want)
                assert torch.equal(values, -want)
        else:
            keep = int(step * cache.length)
            cache.truncate(keep)
            expected = expected[:keep]
        assert cache.length == len(expected)


def test_growth_is_amortised_and_cutting_back_keeps_the_room() -> None:
    cache, grown = KVCache(1, 1, 2), set()
    for _ in range(3000):
        cache.reserve(1)
        cache.commit(1)
        grown.add(cache.capacity)
    assert len(grown) == 5
    assert min(grown) == FIRST_CAPACITY
    cache.truncate(1)
    assert cache.capacity == max(grown)


def test_rows_count_only_once_committed() -> None:
    cache = KVCache(1, 1, 2)
    _append_one = cache.reserve(2)
    _append_one.write(0, torch.ones(2, 1, 2), torch.ones(2, 1, 2))
    assert cache.length == 0
    again = cache.reserve(1)
    assert again.keys[0].shape == (1, 1, 2)


def test_refuses_impossible_lengths() -> None:
    cache = KVCache(1, 1, 2)
    cache.reserve(3)
    cache.commit(3)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="cannot cut a cache of 3 rows"):
            cache.truncate(length)
    with pytest.raises(ValueError, match="more rows committed than reserved"):
        cache.commit(10_000)
