from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dspark_cli.engine.checkpoints.drafter_formats import open_drafter
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.test_hf_folder import edit_json
from tests.engine.checkpoints.tiny_models import CONFIGS, GOLDEN, gguf_keys, gguf_tensors, random_model, write_gguf

HEADS = ("none", "vanilla", "gated", "rnn")
KEYS = ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "markov_rank", "markov_head_type")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "drafter-gated", tmp_path / "drafter"))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_drafter(folder)
    for word in (str(folder), *words):
        assert word in str(caught.value)
    assert caught.value.way_out


@pytest.mark.parametrize("head", HEADS)
def test_every_head_opens(head: str) -> None:
    found = open_drafter(GOLDEN / f"drafter-{head}")
    config = found.config
    assert (config.head, config.markov_rank) == (head, 0 if head == "none" else 16)
    assert (config.block_size, config.mask_token_id, config.taps) == (7, 2, (0, 3, 4))
    assert (config.layers, config.target_layers) == (2, 6)
    assert (config.vocab_size, config.draft_vocab_size) == (64, 64)
    assert (config.confidence_head, config.confidence_with_markov) == (True, head != "none")
    assert config.layer.qk_norm
    assert config.layer.head_dim == 16
    assert found.calibration is None
    for name, tensor in load_file(GOLDEN / f"drafter-{head}" / "model.safetensors").items():
        assert torch.equal(found.weights.tensor(name), tensor), name


def test_calibration_is_read_when_it_is_there(drafter: Path) -> None:
    (drafter / "calibration.json").write_text('{"temperatures": [1.5, 0.5]}')
    assert open_drafter(drafter).calibration == {"temperatures": [1.5, 0.5]}
    (drafter / "calibration.json").write_text("[1.5")
    refused(drafter, "calibration.json")


def test_no_confidence_head(drafter: Path) -> None:
    edit_json(drafter / "config.json", enable_confidence_head=False)
    refused(drafter, "confidence_head.proj", "not account")
    edit_tensors(drafter, **{"confidence_head.proj.weight": None, "confidence_head.proj.bias": None})
    config = open_drafter(drafter).config
    assert not config.confidence_head
    assert not config.confidence_with_markov


def test_confidence_head_without_markov_input(drafter: Path) -> None:
    edit_json(drafter / "config.json", confidence_head_with_markov=False)
    refused(drafter, "confidence_head.proj.weight", "[1, 80]", "[1, 64]")
    edit_tensors(drafter, **{"confidence_head.proj.weight": torch.ones(1, 64)})
    config = open_drafter(drafter).config
    assert config.confidence_head
    assert not config.confidence_with_markov


def test_the_other_name_of_the_confidence_head(drafter: Path) -> None:
    tensors = load_file(drafter / "model.safetensors")
    weight, bias = tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"]
    moved = {"confidence_head.proj.weight": None, "confidence_head.proj.bias": None}
    edit_tensors(drafter, **moved, **{"confidence_proj.weight": weight, "confidence_proj.bias": bias})
    found = open_drafter(drafter)
    assert torch.equal(found.weights.tensor("confidence_head.proj.weight"), weight)
    assert torch.equal(found.weights.tensor("confidence_head.proj.bias"), bias)


def test_embedding_and_head_are_optional_but_must_fit(drafter: Path) -> None:
    edit_tensors(drafter, **{"embed_tokens.weight": None})
    found = open_drafter(drafter)
    assert "embed_tokens.weight" not in found.weights
    assert "lm_head.weight" in found.weights
    edit_tensors(drafter, **{"lm_head.weight": torch.ones(63, 64)})
    refused(drafter, "lm_head.weight", "[63, 64]", "[64, 64]")


@pytest.mark.parametrize("place", ["dspark_", "dspark_config", "dflash_config"])
def test_nested_keys_come_before_the_top_level(drafter: Path, place: str) -> None:
    values = json.loads((drafter / "config.json").read_text())
    wrong = {"block_size": 99, "mask_token_id": 3, "target_layer_ids": [1], "markov_rank": 5}
    if place == "dspark_":
        nested = {f"dspark_{key}": values[key] for key in KEYS}
        lower: dict[str, Any] = {"dspark_config": wrong, "dflash_config": wrong}
    else:
        nested = {place: {key: values[key] for key in KEYS}}
        lower = {"dflash_config": wrong} if place == "dspark_config" else {}
    before = open_drafter(drafter).config
    edit_json(drafter / "config.json", **lower, **wrong, **nested)
    assert open_drafter(drafter).config == before


@pytest.mark.parametrize(("block_size", "taps"), [(1, [-1, 0, 4]), (5, [-1, 3, 4]), (16, [0, 1, 2])])
def test_other_blocks_and_taps(drafter: Path, block_size: int, taps: list[int]) -> None:
    edit_json(drafter / "config.json", block_size=block_size, target_layer_ids=taps)
    config = open_drafter(drafter).config
    assert (config.block_size, config.taps) == (block_size, tuple(taps))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_layer_ids": [0, 3, 5]}, ["target_layer_ids", "before the last of the target's 6"]),
        ({"target_layer_ids": [0, 3, 6]}, ["target_layer_ids"]),
        ({"target_layer_ids": [0, 3, 3]}, ["strictly increasing"]),
        ({"target_layer_ids": [3, 0, 4]}, ["strictly increasing"]),
        ({"target_layer_ids": [-2, 0, 4]}, ["target_layer_ids", "-1"]),
        ({"target_layer_ids": []}, ["target_layer_ids"]),
        ({"target_layer_ids": [0.5, 1, 2]}, ["target_layer_ids"]),
        ({"target_layer_ids": ...}, ["lacks the key target_layer_ids"]),
        ({"target_layer_ids": [0, 3]}, ["fc.weight", "[64, 192]", "[64, 128]"]),
        ({"num_target_layers": ...}, ["num_target_layers"]),
        ({"block_size": 0}, ["block_size"]),
        ({"block_size": ...}, ["block_size"]),
        ({"mask_token_id": 64}, ["mask_token_id", "64"]),
        ({"mask_token_id": None}, ["mask_token_id"]),
        ({"markov_head_type": "lstm"}, ["'lstm'", "gated"]),
        ({"markov_head_type": "rnn"}, ["joint_proj"]),
        ({"markov_head_type": "vanilla"}, ["gate_proj", "not account"]),
        ({"markov_rank": 8}, ["markov_w1.weight", "[64, 16]", "[64, 8]"]),
        ({"markov_rank": 0}, ["confidence_head.proj.weight", "[1, 64]"]),
        ({"markov_rank": -1}, ["markov_rank"]),
        ({"markov_rank": 0, "enable_confidence_head": False}, ["not account"]),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, ["sliding"]),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, ["layers.2."]),
        ({"dspark_config": 3}, ["dspark_config"]),
        ({"architectures": ["DFlashDraftModel"]}, ["DFlash layout"]),
        ({"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}, ["Gemma 4"]),
        ({"architectures": ["Lfm2DSparkModel"], "model_type": "lfm2"}, ["'lfm2'"]),
        ({"architectures": ["Qwen3ForCausalLM"]}, ["Qwen3ForCausalLM", "whole model"]),
    ],
)
def test_configs_that_are_wrong_or_not_read_yet_are_refused(
    drafter: Path, changes: dict[str, Any], words: list[str]
) -> None:
    edit_json(drafter / "config.json", **changes)
    refused(drafter, *words)


@pytest.mark.parametrize("head", HEADS)
def test_every_tensor_must_be_there_in_its_shape(head: str, tmp_path: Path) -> None:
    source = GOLDEN / f"drafter-{head}"
    shutil.copy(source / "config.json", tmp_path)
    tensors = load_file(source / "model.safetensors")
    for name in tensors.keys() - {"embed_tokens.weight", "lm_head.weight"}:
        save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
        refused(tmp_path, f"lacks the tensor {name}")
        save_file({**tensors, name: torch.cat([tensors[name]] * 2)}, tmp_path / "model.safetensors")
        refused(tmp_path, name, "has the shape")


def test_an_fc_bias_is_not_overlooked(drafter: Path) -> None:
    edit_tensors(drafter, **{"fc.bias": torch.ones(64)})
    refused(drafter, "fc.bias", "not account")


def test_paths_that_hold_no_drafter_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no drafter")
    refused(tmp_path, "config.json")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", "no folder")
    dflash = {"general.architecture": "dflash"}
    refused(write_gguf(tmp_path / "d.gguf", dflash, {}), "GGUF layout", "not read yet")
    whole = write_gguf(tmp_path / "m.gguf", gguf_keys(CONFIGS["llama"]), gguf_tensors(random_model(CONFIGS["llama"])))
    refused(whole, "'llama'", "not a drafter")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = Path(shutil.copytree(GOLDEN / "drafter-rnn", tmp_path_factory.mktemp("copy") / "drafter"))
    return path, (path / "model.safetensors").read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_any_beginning_of_a_weight_file_is_refused(copy: tuple[Path, bytes], share: float) -> None:
    path, content = copy
    (path / "model.safetensors").write_bytes(content[: int(share * len(content))])
    refused(path, "model.safetensors")
