from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize

from dspark_cli.engine.checkpoints import weight_cache
from dspark_cli.engine.checkpoints.checkpoint import Checkpoint
from dspark_cli.engine.checkpoints.gguf_file import open_gguf
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.engine.checkpoints.tensor_shapes import target_shapes
from dspark_cli.engine.checkpoints.weight_cache import CachedWeights, cache_path, with_weight_cache
from dspark_cli.paths import cache_dir
from tests.engine.checkpoints.tiny_models import CONFIGS, GOLDEN, gguf_keys, gguf_tensors, random_model, write_gguf


def quantized(path: Path, sign: float = 1.0) -> Checkpoint:
    sizes = CONFIGS["llama"].to_dict() | {"hidden_size": 96, "head_dim": 16, "intermediate_size": 64}
    model = random_model(type(CONFIGS["llama"])(**sizes))
    tensors = gguf_tensors(model)
    raw = {name: quantize(sign * values, Kind.Q8_0) for name, values in tensors.items() if values.ndim == 2}
    write_gguf(path, gguf_keys(model.config), tensors | raw, dict.fromkeys(raw, Kind.Q8_0))
    return open_gguf(path)


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    return quantized(tmp_path / "model.gguf")


def same_tensors(one: Checkpoint, other: Checkpoint) -> bool:
    names = target_shapes(one.config)
    return all(np.array_equal(one.weights.tensor(name), other.weights.tensor(name)) for name in names)


def cached(model: Checkpoint, *expected: str) -> Checkpoint:
    """The model through the cache, after checking what was said."""
    said: list[str] = []
    found = with_weight_cache(model, said.append)
    assert len(said) == len(expected)
    for sentence, words in zip(said, expected, strict=True):
        assert words in sentence
    return found


def test_the_cache_is_made_once_and_gives_the_same_values(model: Checkpoint) -> None:
    first = cached(model, "(1 MB)")
    assert isinstance(first.weights, CachedWeights)
    assert same_tensors(first, model)
    second = cached(model)
    assert isinstance(second.weights, CachedWeights)
    assert same_tensors(second, model)
    assert second.weights_format == "Q8_0"
    assert second.config == model.config
    assert "lm_head.weight" not in second.weights
    assert cache_path(model.path).is_relative_to(cache_dir())


def test_nothing_is_dequantized_from_the_second_time_on(model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(model, "kept in")
    monkeypatch.setattr(type(model.weights), "tensor", None)
    assert torch.isfinite(cached(model).weights.tensor("model.norm.weight")).all()


def test_it_can_be_turned_off(model: Checkpoint) -> None:
    assert with_weight_cache(model, pytest.fail, enabled=False) is model
    assert not cache_dir().exists()


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_torn_cache_is_made_again(model: Checkpoint, content: bytes | None) -> None:
    cached(model, "kept in")
    path = cache_path(model.path)
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    assert same_tensors(cached(model, "kept in"), model)
    assert same_tensors(cached(model), model)


def test_a_cache_with_changed_values_is_not_believed(model: Checkpoint) -> None:
    cached(model, "kept in")
    path = cache_path(model.path)
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    said: list[str] = []
    assert same_tensors(with_weight_cache(model, said.append), model)
    assert len(said) == 1
    assert "damaged" in said[0]
    assert not path.exists()
    assert same_tensors(cached(model, "kept in"), model)


def test_a_cache_of_another_model_is_made_again(model: Checkpoint) -> None:
    cached(model, "kept in")
    cache_path(model.path).write_bytes((GOLDEN / "target" / "model.safetensors").read_bytes())
    assert same_tensors(cached(model, "kept in"), model)


def test_a_changed_source_replaces_its_old_cache(model: Checkpoint, tmp_path: Path) -> None:
    cached(model, "kept in")
    old, before = cache_path(model.path), os.stat(model.path)
    changed = quantized(model.path, sign=-1.0)
    os.utime(model.path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    neighbour = quantized(tmp_path / "other.gguf")
    cached(neighbour, "kept in")
    assert same_tensors(cached(changed, "kept in"), changed)
    assert not old.exists()
    assert cache_path(model.path).exists()
    assert cache_path(neighbour.path).exists()


def test_a_part_that_a_killed_process_left_is_removed(model: Checkpoint) -> None:
    path = cache_path(model.path)
    path.parent.mkdir(parents=True)
    abandoned, young = (path.parent / f".{path.name}.{name}.part" for name in ("old", "new"))
    for part in (abandoned, young):
        part.write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    cached(model, "kept in")
    assert not abandoned.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written_is_said_and_done_without(model: Checkpoint) -> None:
    cache_dir().parent.mkdir(parents=True)
    cache_dir().write_bytes(b"a file where the folder should be")
    assert cached(model, "not kept") is model


def test_a_full_disk_is_said_and_done_without(model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "_SPARE_DISK", 1 << 62)
    assert cached(model, "too little room") is model


def test_an_interrupted_write_leaves_no_cache(model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model.weights), "tensor", interrupt)
        with pytest.raises(KeyboardInterrupt):
            with_weight_cache(model, pytest.fail)
    assert list(cache_path(model.path).parent.iterdir()) == []
    assert same_tensors(cached(model, "kept in"), model)


def test_models_that_gain_nothing_are_left_alone(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(GOLDEN / "target")
    assert cached(folder) is folder
    path = write_gguf(tmp_path / "f32.gguf", gguf_keys(CONFIGS["qwen2"]), gguf_tensors(random_model(CONFIGS["qwen2"])))
    unquantized = open_gguf(path)
    assert cached(unquantized) is unquantized
    monkeypatch.setattr(weight_cache, "_LARGEST", 1000)
    assert cached(model) is model
    assert not cache_dir().exists()
