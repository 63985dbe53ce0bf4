"""Tiny real models of each family, made by transformers, and the way to write them as GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3-tiny"
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**SIZES, head_dim=12, sliding_window=16),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": Qwen3Config(**SIZES, head_dim=10, attention_bias=True),
}


def random_model(config: PretrainedConfig) -> Any:
    """A model whose every parameter, the biases and norms too, is random."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """The row order that llama.cpp's converter gives q and k of architecture llama, one row at a time."""
    size = len(rows) // heads
    order = [head * size + (i % 2) * (size // 2) + i // 2 for head in range(heads) for i in range(size)]
    return rows[order]


_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(model: Any) -> dict[str, np.ndarray]:
    """The model's weights under ggml's names, rows reordered where llama.cpp reorders them."""
    config, found = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, kind = name.rsplit(".", 1)
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        values = tensor.numpy()
        if config.model_type in ("llama", "mistral") and stem == "self_attn.q_proj":
            values = interleaved(values, config.num_attention_heads)
        if config.model_type in ("llama", "mistral") and stem == "self_attn.k_proj":
            values = interleaved(values, config.num_key_value_heads)
        found[f"{prefix}{_PARTS[stem]}.{kind}"] = values
    return found


def gguf_keys(config: Any) -> dict[str, Any]:
    """The key-values that llama.cpp's converter writes for the model."""
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.tokens": [f"tök{i}" for i in range(config.vocab_size)],
        "tokenizer.ggml.scores": [-float(i) for i in range(config.vocab_size)],
        "tokenizer.ggml.token_type": [1] * config.vocab_size,
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
        "tokenizer.ggml.add_bos_token": True,
    }


def write_gguf(
    path: Path,
    keys: dict[str, Any],
    tensors: dict[str, np.ndarray],
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    **options: Any,
) -> Path:
    """Write a GGUF file with the library's own writer; ``kinds`` gives tensors that hold stored bytes their type."""
    writer = gguf.GGUFWriter(path, keys["general.architecture"], **options)
    for key, value in keys.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
