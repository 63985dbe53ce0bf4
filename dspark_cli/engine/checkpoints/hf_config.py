"""A Hugging Face config.json becomes a TargetConfig; the shape of its layers serves drafters too.

Keys and their defaults follow the configuration classes of transformers for the four model types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dspark_cli.engine.checkpoints.checkpoint import GenerationDefaults
from dspark_cli.engine.checkpoints.fields import MOST_LAYERS, Fields
from dspark_cli.engine.model_config import LayerShape, RopeConfig, TargetConfig
from dspark_cli.errors import CheckpointError

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
KNOWN: Final = "use a model of the Llama, Qwen2, Qwen3, Mistral or SmolLM2 family"


def target_config(values: Mapping[str, Any], where: str) -> TargetConfig:
    """The target that config.json (parsed: ``values``; named in messages: ``where``) describes.

    Raises:
        CheckpointError: an unknown family, a quantized or headless model, or a key that is missing, wrong or unknown.
    """
    fields = Fields(values, where)
    family = _family(fields)
    _refuse_quantized(values, where)
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    return TargetConfig(
        family=family,
        layer=layer_shape(fields, family),
        layers=layers,
        vocab_size=fields.whole("vocab_size"),
        tied_head=fields.flag("tie_word_embeddings", False),
        context_length=fields.whole("max_position_embeddings"),
        sliding_windows=sliding_windows(fields, family, layers),
        bos_id=fields.whole("bos_token_id", None, least=0),
        eos_ids=fields.wholes("eos_token_id", ()),
    )


def _family(fields: Fields) -> str:
    family = fields.text("model_type")
    if family not in FAMILIES:
        raise CheckpointError(f"{fields.where} is of the family {family!r}, which is not known here", KNOWN)
    architectures = fields.texts("architectures")
    if any("DSpark" in name or "DFlash" in name for name in architectures):
        raise CheckpointError(f"{fields.where} describes a drafter, not a model to chat with", "give it as --drafter")
    if architectures and not any(name.endswith("ForCausalLM") for name in architectures):
        raise CheckpointError(f"{fields.where} describes {architectures[0]}, which generates no text", KNOWN)
    return family


def _refuse_quantized(values: Mapping[str, Any], where: str) -> None:
    quantization = values.get("quantization_config") or values.get("compression_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise CheckpointError(
            f"{where} describes weights quantized with {method or 'an unnamed method'}, which is not read here",
            "use the unquantized folder or a quantized .gguf file of the model",
        )


def layer_shape(fields: Fields, family: str) -> LayerShape:
    """What every layer of the model shares.

    Raises:
        CheckpointError: a key is missing or wrong, heads do not divide, or the activation or RoPE kind is unknown.
    """
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"{fields.where} asks for the activation {activation!r}, and only silu is known", KNOWN)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    biased = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    # Qwen3's head size does not follow from the hidden size where the key is absent.
    head_dim = fields.whole("head_dim", 128 if family == "qwen3" else hidden // heads)
    shape = LayerShape(
        hidden_size=hidden,
        intermediate_size=fields.whole("intermediate_size"),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=rope_config(fields),
        qk_norm=family == "qwen3",
        qkv_bias=biased or family == "qwen2",
        output_bias=biased,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
    )
    check_heads(shape, fields.where)
    return shape


def check_heads(shape: LayerShape, where: str) -> None:
    """Raise CheckpointError unless query heads share key heads evenly and a head can be rotated in two halves."""
    if shape.heads % shape.kv_heads or shape.head_dim < 2 or shape.head_dim % 2:
        raise CheckpointError(
            f"{where} gives {shape.heads} heads, {shape.kv_heads} key heads and a head size of {shape.head_dim}, "
            "which do not fit together",
            "download the model again",
        )


def rope_config(fields: Fields) -> RopeConfig:
    """Rotary settings from ``rope_scaling`` with ``rope_theta``, or from the newer ``rope_parameters``.

    Raises:
        CheckpointError: a kind other than default, linear and llama3, or a key of its own that is missing.
    """
    section = fields.section("rope_scaling") or fields.section("rope_parameters")
    scaling = Fields(section, f"the RoPE scaling of {fields.where}")
    if any(isinstance(value, Mapping) for value in section.values()):
        raise CheckpointError(f"{fields.where} gives each kind of layer its own RoPE, which is not known here", KNOWN)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    theta = scaling.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    if fields.positive("partial_rotary_factor", scaling.positive("partial_rotary_factor", 1.0)) != 1.0:
        raise CheckpointError(f"{fields.where} rotates a part of each head only, which is not known here", KNOWN)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=scaling.positive("factor"))
    if kind == "llama3":
        context = fields.whole("original_max_position_embeddings", fields.whole("max_position_embeddings"))
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=scaling.positive("factor"),
            low_freq_factor=scaling.positive("low_freq_factor"),
            high_freq_factor=scaling.positive("high_freq_factor"),
            original_context=scaling.whole("original_max_position_embeddings", context),
        )
    raise CheckpointError(
        f"{fields.where} asks for RoPE scaling of type {kind!r}, and default, linear and llama3 are known",
        "use a model without it",
    )


def sliding_windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    """The window of each layer in tokens; a size that is null, absent or 0 means none.

    Mistral has one window for all layers, Qwen only with ``use_sliding_window`` and only in the layers that
    ``layer_types`` names or, without it, from ``max_window_layers`` on. Llama has none.
    """
    used = family == "mistral" or (family in ("qwen2", "qwen3") and fields.flag("use_sliding_window", False))
    window = (fields.whole("sliding_window", 0, least=0) or None) if used else None
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = 0 if family == "mistral" else fields.whole("max_window_layers", 28, least=0)
        return tuple(window if index >= first else None for index in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers} entries")
    unknown = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
    if unknown:
        raise CheckpointError(f"{fields.where} has layers of type {unknown[0]!r}, which are not known here", KNOWN)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def generation_defaults(values: Mapping[str, Any], where: str) -> GenerationDefaults:
    """Sampling defaults and stop ids of a parsed generation_config.json."""
    fields = Fields(values, where)
    return GenerationDefaults(
        do_sample=fields.flag("do_sample", False) if values.get("do_sample") is not None else None,
        temperature=fields.number("temperature", None),
        top_k=fields.whole("top_k", None, least=0),
        top_p=fields.number("top_p", None),
        min_p=fields.number("min_p", None),
        repetition_penalty=fields.number("repetition_penalty", None),
        eos_ids=fields.wholes("eos_token_id", ()),
    )
