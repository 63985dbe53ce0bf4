"""Write a drafter to a folder: the DeepSpec layout for the whole vocabulary, the speculators layout for a reduced one.

Embedding and head are the target's and stay out, unless asked for: the engine takes them from the target, other
runtimes may need them in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig
from dspark_cli.errors import DsparkError
from dspark_cli.paths import replacing

SHARED: Final = ("embed_tokens.weight", "lm_head.weight")
_DTYPES: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


@dataclass(frozen=True)
class TargetNames:
    """What a drafter's file says of its target: a name or path, its architectures, and the context it was made for."""

    name: str
    architectures: tuple[str, ...] = ()
    context_length: int = 32768


def write_drafter(
    folder: Path,
    config: DrafterConfig,
    tensors: Mapping[str, Tensor],
    draft_ids: Tensor | None,
    target: TargetNames,
    *,
    dtype: torch.dtype = torch.float16,
    full: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write ``config.json`` and ``model.safetensors``; each appears whole or not at all, other files are left alone.

    Args:
        folder: made if it is not there.
        config: the drafter's shape.
        tensors: by DeepSpec names.
        draft_ids: target ids [V_draft] of a reduced draft vocabulary, rising; None for the whole one.
        target: what it drafts for.
        dtype: to store all tensors in.
        full: write embedding [V, H] and head [V_draft, H] too, which must be among ``tensors``.
        extra: more keys for config.json, such as how it was trained; they may not replace any.

    Raises:
        DsparkError: a value is too large for ``dtype``, or the files cannot be written.
        ValueError: the layout cannot say what ``config`` says, or a shared tensor is missing.
    """
    values = config_values(config, draft_ids is not None, target, dtype, extra)
    stored = _stored(tensors, dtype, full)
    if draft_ids is not None:
        stored |= _vocabulary(draft_ids, config)
    try:
        # Both are written before either takes its place.
        with replacing(folder / "model.safetensors") as weights, replacing(folder / "config.json") as described:
            save_file(stored, weights, metadata={"format": "pt"})
            described.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            weights.chmod(0o644)
            described.chmod(0o644)
    except OSError as error:
        raise DsparkError(
            f"the drafter cannot be written to {folder} ({error.strerror or error})",
            "make room or choose another folder",
        ) from error


def config_values(
    config: DrafterConfig,
    reduced: bool,
    target: TargetNames,
    dtype: torch.dtype = torch.float16,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The keys of config.json: speculators layout for a ``reduced`` vocabulary, else DeepSpec.

    Raises:
        ValueError: the layout cannot say what ``config`` says, or ``extra`` has a key of its own meaning.
    """
    shape = {
        **_layer_values(config.layer),
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.layers,
        "num_target_layers": config.target_layers,
        "layer_types": ["full_attention"] * config.layers,
        "max_position_embeddings": target.context_length,
        "tie_word_embeddings": False,
    }
    heads = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "markov_rank": config.markov_rank,
        "markov_head_type": config.head if config.markov_rank else "vanilla",
        "enable_confidence_head": config.confidence_head,
        "confidence_head_with_markov": config.confidence_with_markov,
        "torch_dtype": _DTYPES[dtype],
    }
    if reduced:
        values = {**_speculators_values(config, target), "transformer_layer_config": shape, **heads}
    else:
        values = {
            "architectures": ["Qwen3DSparkModel"], **shape, "target_layer_ids": list(config.taps), **heads
        }  # fmt: skip
    clash = set(values).intersection(extra or ())
    if clash:
        raise ValueError(f"config.json has a meaning for {sorted(clash)} already")
    return {**values, **(extra or {})}


def _layer_values(layer: LayerShape) -> dict[str, Any]:
    """The shape of a layer as Qwen3's config says it."""
    if not layer.qk_norm or layer.mlp_bias or layer.qkv_bias != layer.output_bias:
        raise ValueError("the layouts know layers with query and key norms and without MLP biases")
    return {
        "model_type": "qwen3",
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": layer.norm_eps,
        "attention_bias": layer.qkv_bias,
        **_rope_values(layer.rope),
    }


def _rope_values(rope: RopeConfig) -> dict[str, Any]:
    if rope.kind == "default":
        return {"rope_theta": rope.theta}
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        }
    elif rope.kind != "linear":
        raise ValueError(f"config.json has no words for rotary embeddings of the kind {rope.kind!r}")
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def _speculators_values(config: DrafterConfig, target: TargetNames) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": config.block_size}
    return {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target.name, "architectures": list(target.architectures)},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.layer.hidden_size,
        # This layout counts by the inputs of layers.
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.taps],
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "tie_word_embeddings": False,
    }


def _stored(tensors: Mapping[str, Tensor], dtype: torch.dtype, full: bool) -> dict[str, Tensor]:
    missing = [name for name in SHARED if full and name not in tensors]
    if missing:
        raise ValueError(f"a full drafter needs the tensor {missing[0]}")
    stored = {}
    for name, tensor in tensors.items():
        if name in SHARED and not full:
            continue
        stored[name] = tensor.detach().to("cpu", dtype).contiguous()
        if not stored[name].isfinite().all():
            raise DsparkError(
                f"the tensor {name} holds values that {_DTYPES[dtype]} cannot hold", "write the drafter in float32"
            )
    return stored


def _vocabulary(draft_ids: Tensor, config: DrafterConfig) -> dict[str, Tensor]:
    """``d2t`` holds offsets from draft id to target id, ``t2d`` which target ids are among them."""
    ids = draft_ids.to("cpu", torch.int64)
    rising = bool((ids[1:] > ids[:-1]).all())
    if len(ids) != config.draft_vocab_size or not rising or ids[0] < 0 or ids[-1] >= config.vocab_size:
        raise ValueError(f"the draft vocabulary must be {config.draft_vocab_size} rising ids of the target's")
    among = torch.zeros(config.vocab_size, dtype=torch.bool)
    among[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": among}


def drafter_layer(target: LayerShape) -> LayerShape:
    """The shape of a target's layers as both layouts can say it: query and key norms, no biases, known rotary kinds.

    Frequency factors of a GGUF file have no place in config.json, so their drafter turns by the bare base.
    """
    rope = RopeConfig(target.rope.theta) if target.rope.kind == "factors" else target.rope
    return replace(target, qk_norm=True, qkv_bias=False, output_bias=False, mlp_bias=False, rope=rope)
