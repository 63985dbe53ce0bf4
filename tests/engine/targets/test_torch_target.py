"""The target against transformers, and against itself read in other ways."""

from __future__ import annotations

import itertools

import pytest
import torch
from dspark_kernels import FBGEMM, ONEDNN, REFERENCE, KernelSet
from torch import Tensor

from dspark_cli.engine.contracts import Cache, Rows, Target
from dspark_cli.engine.kv_cache import KVCache
from dspark_cli.engine.targets.torch_target import TorchTarget
from dspark_cli.errors import CheckpointError
from tests.engine.targets.tiny_models import FAMILIES, LAYERS, VOCABULARY, pair
from tests.fakes.memory_weights import MemoryWeights

TOLERANCE = {"rtol": 0.0, "atol": 1e-4}
ALL_TAPS = tuple(range(-1, LAYERS))


def _ids(count: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())


def _read(target: Target, cache: Cache, ids: tuple[int, ...], cuts: tuple[int, ...] = ()) -> Tensor:
    """Logits of all ``ids``, read in passes that end at ``cuts``."""
    edges = (0, *cuts, len(ids))
    passes = itertools.pairwise(edges)
    return torch.cat([target.forward([Rows(cache, ids[start:stop])])[0].logits for start, stop in passes])


@pytest.fixture(scope="module")
def qwen3() -> TorchTarget:
    return pair("qwen3-mixed").ours()


@pytest.mark.parametrize("kernels", [REFERENCE, ONEDNN, FBGEMM], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("key", FAMILIES)
def test_logits_and_taps_are_those_of_transformers(key: str, kernels: KernelSet) -> None:
    ids = _ids(63)
    logits, hidden = pair(key).expected(ids)
    assert logits.std() > 0.3  # a model that says something
    target = pair(key).ours(kernels)
    (whole,) = target.forward([Rows(target.new_cache(), ids)], ALL_TAPS)
    torch.testing.assert_close(whole.logits, logits, **TOLERANCE)
    torch.testing.assert_close(whole.taps, torch.cat(hidden, dim=-1), **TOLERANCE)
    singly = _read(target, target.new_cache(), ids, tuple(range(1, 63)))
    torch.testing.assert_close(singly, logits, **TOLERANCE)
    in_blocks = _read(target, target.new_cache(), ids, (1, 8, 9, 40, 42, 58))
    torch.testing.assert_close(in_blocks, logits, **TOLERANCE)


def test_the_windows_of_the_test_models_matter() -> None:
    ids = _ids(63)
    logits, _ = pair("mistral-window").expected(ids)
    without, _ = pair("mistral").expected(ids)
    assert torch.allclose(logits[:5], without[:5], atol=1e-5)
    assert (logits[5:] - without[5:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("key", ["llama-llama3", "qwen3-mixed", "mistral-window"])
def test_several_sequences_in_one_pass_give_what_each_gives_alone(key: str) -> None:
    target = pair(key).ours()
    prompts = [_ids(length, seed) for seed, length in enumerate((1, 9, 40, 70))]
    news = [_ids(count, 10 + count) for count in (1, 8, 3, 1)]
    logits_from = (0, 2, 3, 0)
    caches = [target.new_cache() for _ in prompts]
    for cache, prompt in zip(caches, prompts, strict=True):
        _read(target, cache, prompt)
    blocks = [Rows(*block) for block in zip(caches, news, logits_from, strict=True)]
    together = target.forward(blocks, (2, -1))
    assert [len(v.logits) for v in together] == [1, 6, 0, 1]
    assert [cache.length for cache in caches] == [2, 17, 43, 71]
    for verification, prompt, new, start in zip(together, prompts, news, logits_from, strict=True):
        logits, hidden = pair(key).expected(prompt + new)
        torch.testing.assert_close(verification.logits, logits[len(prompt) + start :], **TOLERANCE)
        taps = torch.cat((hidden[3], hidden[0]), dim=-1)[len(prompt) :]
        torch.testing.assert_close(verification.taps, taps, **TOLERANCE)


@pytest.mark.parametrize("key", ["llama-llama3", "qwen3-mixed", "mistral-window"])
def test_cutting_back_and_going_on_equals_a_fresh_prefill(key: str) -> None:
    target, ids = pair(key).ours(), _ids(100)
    cache = target.new_cache()
    for start in range(0, 60, 4):
        _read(target, cache, ids[start : start + 4] + _ids(7, seed=start))  # seven rejected drafts
        cache.truncate(start + 4)
    after = _read(target, cache, ids[60:])
    fresh_cache = target.new_cache()
    fresh = _read(target, fresh_cache, ids)
    torch.testing.assert_close(after, fresh[60:], **TOLERANCE)
    ours, theirs = cache.reserve(0), fresh_cache.reserve(0)
    for kind in ("keys", "values"):
        for layer in range(LAYERS):
            torch.testing.assert_close(getattr(ours, kind)[layer], getattr(theirs, kind)[layer], **TOLERANCE)


def test_memory_that_was_never_written_does_not_leak(qwen3: TorchTarget) -> None:
    ids, cache = _ids(40), qwen3.new_cache()
    _read(qwen3, cache, ids + ids)
    cache.truncate(20)
    with torch.inference_mode():
        room = cache.reserve(cache.capacity - 20)
        for new in (*room.new_keys, *room.new_values):
            new.fill_(torch.nan)
    expected = pair("qwen3-mixed").expected(ids)[0][20:]
    torch.testing.assert_close(_read(qwen3, cache, ids[20:], (3, 4)), expected, **TOLERANCE)


@pytest.mark.parametrize("kernels", [ONEDNN, FBGEMM], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("key", FAMILIES)
def test_widths_1_to_16_agree(key: str, kernels: KernelSet) -> None:
    """Same choice at every width; where it differs, the two best must be closer than 1e-4."""
    target, prompt, new = pair(key).ours(kernels), _ids(30), _ids(16, seed=3)
    cache = target.new_cache()
    _read(target, cache, prompt)
    alone = _read(target, cache, new, tuple(range(1, 16)))
    best = alone.topk(2).values
    close_calls = []
    for width in range(2, 17):
        cache.truncate(30)
        logits = _read(target, cache, new, tuple(range(width, 16, width)))
        torch.testing.assert_close(logits, alone, rtol=0, atol=1e-5)
        for row in (logits.argmax(-1) != alone.argmax(-1)).nonzero().flatten().tolist():
            close_calls.append((width, row, (best[row, 0] - best[row, 1]).item()))
    assert all(gap < 1e-4 for _, _, gap in close_calls), close_calls


@pytest.mark.parametrize("key", FAMILIES)
def test_runs_in_half_precision(key: str) -> None:
    """What a card does, on the CPU: all of it in float16, caches and masks too."""
    ids, target = _ids(63), pair(key).ours(REFERENCE, dtype=torch.float16)
    cache = target.new_cache()
    logits = _read(target, cache, ids, (40, 41, 48))
    assert logits.dtype == cache.reserve(0).keys[0].dtype == torch.float16
    expected, _ = pair(key).expected(ids)
    # Relative to the spread of the logits: rounding of float16 (2^-11) through a few layers.
    assert ((logits - expected).norm() / expected.norm()).item() < 5e-3


@pytest.mark.parametrize("key", FAMILIES)
def test_makes_every_tensor_on_its_own_device(key: str) -> None:
    """On a device without memory, any tensor that was left on the CPU is an error."""
    target = pair(key).ours(REFERENCE, device="meta", dtype=torch.bfloat16)
    caches = [target.new_cache(), target.new_cache()]
    for counts in ((40, 3), (1, 8), (1, 1)):
        blocks = [Rows(cache, _ids(count), count - 1) for cache, count in zip(caches, counts, strict=True)]
        for verification in target.forward(blocks, (-1, 2)):
            assert verification.logits.device.type == "meta"
            assert verification.taps is not None
            assert verification.taps.device.type == "meta"
    assert [cache.length for cache in caches] == [42, 12]


def test_rows_without_logits_still_give_taps(qwen3: TorchTarget) -> None:
    cache = qwen3.new_cache()
    (nothing,) = qwen3.forward([Rows(cache, _ids(5), logits_from=5)], (0,))
    assert nothing.logits.shape == (0, VOCABULARY)
    assert nothing.taps is not None
    assert nothing.taps.shape == (5, qwen3.config.layer.hidden_size)
    (last,) = qwen3.forward([Rows(cache, _ids(6)[5:])])
    assert last.taps is None
    torch.testing.assert_close(last.logits, pair("qwen3-mixed").expected(_ids(6))[0][5:], **TOLERANCE)


def test_shares_its_embedding_and_head(qwen3: TorchTarget) -> None:
    theirs = pair("qwen3-mixed").theirs
    rows = qwen3.embed([3, 3, 99])
    torch.testing.assert_close(rows, theirs.model.embed_tokens.weight[[3, 3, 99]], rtol=0, atol=0)
    torch.testing.assert_close(qwen3.head(rows), theirs.lm_head(rows), **TOLERANCE)


def test_fits_the_contract(qwen3: TorchTarget) -> None:
    target: Target = qwen3
    assert (target.vocab_size, target.context_length) == (VOCABULARY, 256)


def test_refuses_blocks_that_make_no_sense(qwen3: TorchTarget) -> None:
    cache = qwen3.new_cache()
    for blocks, message in (
        ([], "at least one row"),
        ([Rows(cache, ())], "at least one row"),
        ([Rows(cache, (1,)), Rows(cache, (2,))], "share a cache"),
        ([Rows(cache, (1,), logits_from=2)], "logits_from"),
    ):
        with pytest.raises(ValueError, match=message):
            qwen3.forward(blocks)
    for tap in (-2, LAYERS):
        with pytest.raises(ValueError, match="taps"):
            qwen3.forward([Rows(cache, (1,))], (tap,))
    assert cache.length == 0


def test_a_pass_that_fails_leaves_the_cache_as_it_was(qwen3: TorchTarget) -> None:
    ids, cache = _ids(20), qwen3.new_cache()
    _read(qwen3, cache, ids[:10])
    with pytest.raises(IndexError):
        qwen3.forward([Rows(cache, (3, VOCABULARY))])
    assert cache.length == 10
    expected = pair("qwen3-mixed").expected(ids)[0][10:]
    torch.testing.assert_close(_read(qwen3, cache, ids[10:]), expected, **TOLERANCE)


def test_refuses_a_foreign_cache(qwen3: TorchTarget) -> None:
    class Foreign:
        length = 0

        def truncate(self, length: int) -> None: ...

    with pytest.raises(TypeError, match="Foreign"):
        qwen3.forward([Rows(Foreign(), (1,))])


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
def test_names_a_missing_tensor(name: str) -> None:
    tensors = dict(pair("qwen3").theirs.state_dict())
    del tensors[name]
    with pytest.raises(CheckpointError, match=name):
        TorchTarget(pair("qwen3").config, MemoryWeights(tensors), ONEDNN)


def test_a_cache_belongs_to_the_model_s_shape(qwen3: TorchTarget) -> None:
    cache = qwen3.new_cache()
    assert isinstance(cache, KVCache)
    assert cache.reserve(2).keys[LAYERS - 1].shape == (2, 2, 16)
