"""The key-values of a GGUF file become a TargetConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dspark_cli.engine.checkpoints.checkpoint import GenerationDefaults
from dspark_cli.engine.checkpoints.fields import MOST_LAYERS, Fields
from dspark_cli.engine.checkpoints.hf_config import KNOWN, check_heads
from dspark_cli.engine.model_config import LayerShape, RopeConfig, TargetConfig
from dspark_cli.errors import CheckpointError

# Mistral and SmolLM2 are exported as architecture llama.
ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
_END_KEYS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def gguf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: tuple[float, ...] | None,
    where: str,
) -> TargetConfig:
    """The target that ``metadata`` describes; biases and a tied head show in which tensors (``shapes``) there are.

    ``rope_factors`` are the values of ``rope_freqs.weight``, where llama3 scaling is stored.

    Raises:
        CheckpointError: an unknown architecture, or a key that is missing, wrong or asks for what is not known.
    """
    architecture = Fields(metadata, where).text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(f"{where} is of the architecture {architecture!r}, which is not known here", KNOWN)
    fields = _of_architecture(metadata, architecture, where)
    if fields.whole("expert_count", 0, least=0):
        raise CheckpointError(f"{where} is a mixture of experts, which is not known here", KNOWN)
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{where} lacks the tensor token_embd.weight", "download the model again")
    layers = fields.whole("block_count", most=MOST_LAYERS)
    layer = _layer_shape(fields, shapes, architecture, rope_factors)
    return TargetConfig(
        family=architecture,
        layer=layer,
        layers=layers,
        # The embedding's rows may outnumber the tokenizer's entries: they are often padded.
        vocab_size=shapes["token_embd.weight"][0],
        tied_head="output.weight" not in shapes,
        context_length=fields.whole("context_length"),
        sliding_windows=_sliding_windows(fields, layers),
        bos_id=Fields(metadata, where).whole("tokenizer.ggml.bos_token_id", None, least=0),
        eos_ids=_end_ids(metadata, where),
    )


def _of_architecture(metadata: Mapping[str, Any], architecture: str, where: str) -> Fields:
    """The keys of the architecture without its prefix, arrays as tuples, and a tuple of equal values as one value."""
    prefix = architecture + "."
    values: dict[str, Any] = {}
    for key, value in metadata.items():
        if key.startswith(prefix):
            plain = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
            same = isinstance(plain, tuple) and len(set(plain)) == 1
            values[key.removeprefix(prefix)] = plain[0] if same else plain
    return Fields(values, where)


def _layer_shape(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], architecture: str, rope_factors: tuple[float, ...] | None
) -> LayerShape:
    hidden, heads = fields.whole("embedding_length"), fields.whole("attention.head_count")
    head_dim = fields.whole("attention.key_length", hidden // heads)
    value_dim = fields.whole("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise CheckpointError(f"{fields.where} has keys of size {head_dim} and values of size {value_dim}", KNOWN)
    if fields.whole("rope.dimension_count", head_dim) != head_dim:
        raise CheckpointError(f"{fields.where} rotates a part of each head only, which is not known here", KNOWN)
    shape = LayerShape(
        hidden_size=hidden,
        intermediate_size=fields.whole("feed_forward_length"),
        heads=heads,
        kv_heads=fields.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, rope_factors, head_dim),
        qk_norm=architecture == "qwen3",
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_gate.bias" in shapes,
    )
    check_heads(shape, fields.where)
    return shape


def _rope(fields: Fields, factors: tuple[float, ...] | None, head_dim: int) -> RopeConfig:
    theta = fields.positive("rope.freq_base", 10000.0)
    linear = fields.positive("rope.scaling.factor", fields.positive("rope.scale_linear", 1.0))
    kind = fields.text("rope.scaling.type", "linear" if linear != 1.0 else "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{fields.where} asks for RoPE scaling of type {kind!r}, and none, linear and llama3 are known",
            "use a model without it",
        )
    if factors is not None:
        if len(factors) != head_dim // 2 or not all(0 < factor < float("inf") for factor in factors):
            raise CheckpointError(f"{fields.where} has RoPE factors that do not fit its heads", "download it again")
        if kind == "linear" and linear != 1.0:
            raise CheckpointError(f"{fields.where} has two kinds of RoPE scaling at once", "use another file")
        return RopeConfig(theta=theta, kind="factors", factors=factors)
    return RopeConfig(theta=theta, kind="linear", factor=linear) if kind == "linear" else RopeConfig(theta=theta)


def _sliding_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    window = fields.whole("attention.sliding_window", 0, least=0) or None
    pattern = fields.values.get("attention.sliding_window_pattern", True)
    if isinstance(pattern, bool):
        pattern = (pattern,) * layers
    if not isinstance(pattern, tuple) or len(pattern) != layers or any(not isinstance(used, bool) for used in pattern):
        raise fields.wrong("attention.sliding_window_pattern", f"a list of {layers} times true or false")
    return tuple(window if used else None for used in pattern)


def _end_ids(metadata: Mapping[str, Any], where: str) -> tuple[int, ...]:
    found = (Fields(metadata, where).whole(key, None, least=0) for key in _END_KEYS)
    return tuple(dict.fromkeys(token for token in found if token is not None))


def gguf_generation(metadata: Mapping[str, Any], where: str) -> GenerationDefaults:
    """Sampling defaults of a GGUF file (``general.sampling.*``, seldom there) and its stop ids."""
    fields = Fields(metadata, where)
    return GenerationDefaults(
        temperature=fields.number("general.sampling.temp", None),
        top_k=fields.whole("general.sampling.top_k", None, least=0),
        top_p=fields.number("general.sampling.top_p", None),
        min_p=fields.number("general.sampling.min_p", None),
        repetition_penalty=fields.number("general.sampling.penalty_repeat", None),
        eos_ids=_end_ids(metadata, where),
    )
