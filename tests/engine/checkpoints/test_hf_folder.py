from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.engine.checkpoints.opening import open_checkpoint
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.tiny_models import CONFIGS, GOLDEN, random_model

FAMILIES = {"llama": "llama", "llama-biased": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            del values[key]
        else:
            values[key] = value
    path.write_text(json.dumps(values))


def same_weights(checkpoint: Checkpoint, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in state.items():
        if name == "lm_head.weight" and checkpoint.config.tied_head:
            assert name not in checkpoint.weights
            continue
        found = checkpoint.weights.tensor(name)
        assert found.dtype == torch.float32
        assert torch.equal(found, tensor.float()), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama in three shards with an index."""
    path = tmp_path / "llama"
    random_model(CONFIGS["llama-biased"]).save_pretrained(path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) >= 3
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_gives_the_weights_and_shape_of_transformers(name: str, tmp_path: Path) -> None:
    config, model = CONFIGS[name], random_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    found = open_folder(tmp_path)
    same_weights(found, model.state_dict())
    assert found.kind == "folder"
    assert found.path == tmp_path
    assert found.metadata["model_type"] == FAMILIES[name]
    assert found.config.family == FAMILIES[name]
    assert found.config.tied_head == config.tie_word_embeddings
    layer = found.config.layer
    assert (layer.heads, layer.kv_heads) == (6, 2)
    assert layer.head_dim == {"mistral": 12, "qwen3": 10}.get(name, 8)
    assert layer.qk_norm == (name == "qwen3")
    assert layer.qkv_bias == (name in ("llama-biased", "qwen2", "qwen3"))
    assert layer.output_bias == (name in ("llama-biased", "qwen3"))
    assert layer.mlp_bias == (name == "llama-biased")
    assert layer.rope.theta == {"llama-biased": 500000.0, "qwen2": 1e6}.get(name, 10000.0)
    assert layer.rope.kind == ("llama3" if name == "llama-biased" else "default")
    assert found.config.sliding_windows == ((16 if name == "mistral" else None),) * 3
    assert (found.config.bos_id, found.config.eos_ids) == (1, (2,))


def test_many_shards_are_one_model(folder: Path) -> None:
    same_weights(open_folder(folder), random_model(CONFIGS["llama-biased"]).state_dict())


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")])
def test_narrow_types_are_widened(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS["qwen2"]).to(dtype)
    model.save_pretrained(tmp_path)
    found = open_folder(tmp_path)
    same_weights(found, model.state_dict())
    assert found.weights_format == name


def test_the_golden_target_opens() -> None:
    found = open_checkpoint(GOLDEN / "target")
    assert found.generation.eos_ids == (1,)
    assert found.generation.temperature is None
    same_weights(found, load_file(GOLDEN / "target" / "model.safetensors"))


def test_generation_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, '
        '"repetition_penalty": 1.1, "eos_token_id": [2, 7]}'
    )
    found = open_folder(folder).generation
    assert found.do_sample is True
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.6, 20, 0.95, 0.0)
    assert (found.repetition_penalty, found.eos_ids) == (1.1, (2, 7))
    (folder / "generation_config.json").unlink()
    assert open_folder(folder).generation.eos_ids == ()


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.way_out


def test_a_missing_path_or_config_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere")
    refused(tmp_path, "config.json")
    (tmp_path / "weights.bin").write_bytes(b"")
    refused(tmp_path / "weights.bin", "neither a folder nor a .gguf")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe{}", b'{"a":' * 20000])
def test_a_garbage_config_is_named(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder, "config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, ["'gpt2'", "Qwen3"]),
        ({"model_type": ...}, ["model_type"]),
        ({"architectures": ["Qwen3DSparkModel"]}, ["drafter"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["gptq", "gguf"]),
        ({"architectures": {"a": 1}}, ["architectures", "list of texts"]),
        ({"hidden_act": "gelu"}, ["'gelu'"]),
        ({"hidden_size": "48"}, ["hidden_size"]),
        ({"hidden_size": True}, ["hidden_size"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_hidden_layers": 10**12}, ["num_hidden_layers", "at most"]),
        ({"num_key_value_heads": 4}, ["4 key heads"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps"]),
        ({"eos_token_id": ["x"]}, ["eos_token_id"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings"]),
        ({"partial_rotary_factor": 0.5}, ["part of each head"]),
        ({"num_hidden_layers": 4}, ["model.layers.3.", "and 15 more"]),
        ({"num_hidden_layers": 2}, ["model.layers.2.", "not account"]),
        ({"attention_bias": False}, ["_proj.bias", "not account"]),
        ({"intermediate_size": 64}, ["[56, 48]", "[64, 48]"]),
        ({"vocab_size": 41}, ["embed_tokens", "[40, 48]"]),
    ],
)
def test_a_config_that_is_wrong_or_does_not_fit_is_refused(
    folder: Path, changes: dict[str, Any], words: list[str]
) -> None:
    edit_json(folder / "config.json", **changes)
    refused(folder, str(folder), *words)


def test_an_index_that_names_an_absent_shard_is_refused(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    refused(folder, "model.safetensors.index.json", shard.name)


def test_an_index_that_does_not_fit_its_shards_is_refused(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    placed = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map={**placed, "model.norm.weight": placed["model.embed_tokens.weight"]})
    refused(folder, "model.norm.weight", placed["model.embed_tokens.weight"])
    edit_json(index, weight_map={"a": "../other/model.safetensors"})
    refused(folder, "../other")
    edit_json(index, weight_map=[])
    refused(folder, "weight_map")


def test_weights_in_another_format_only_are_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "no model.safetensors.index.json")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    refused(folder, "no weights")
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, "pickle", ".safetensors")


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    random_model(CONFIGS["mistral"]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, file)
    refused(tmp_path, "lacks the tensor lm_head.weight,")


def test_integers_are_refused(tmp_path: Path) -> None:
    random_model(CONFIGS["mistral"]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "model.norm.weight": torch.ones(48, dtype=torch.int8)}, file)
    refused(tmp_path, "model.norm.weight", "I8")


def test_a_head_stored_beside_a_tied_embedding_is_left_out(tmp_path: Path) -> None:
    model = random_model(CONFIGS["llama"])
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "lm_head.weight": torch.zeros(40, 48)}, file)
    assert "lm_head.weight" not in open_folder(tmp_path).weights


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("small")
    random_model(CONFIGS["qwen3"]).save_pretrained(path)
    return path, (path / "model.safetensors").read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_any_beginning_of_a_weight_file_is_refused(small: tuple[Path, bytes], share: float) -> None:
    path, content = small
    (path / "model.safetensors").write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_folder(path)


@given(garbage=st.binary(max_size=300))
def test_garbage_for_weights_is_refused(small: tuple[Path, bytes], garbage: bytes) -> None:
    (small[0] / "model.safetensors").write_bytes(garbage)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_folder(small[0])
