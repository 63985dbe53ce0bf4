"""Which tensors a config calls for, in which shapes, and the comparison with what a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dspark_cli.engine.model_config import DrafterConfig, LayerShape, TargetConfig
from dspark_cli.errors import CheckpointError

Shape = tuple[int, ...]
# Names beginning so belong to the computation; others (a second head, old rotary tables) may lie beside it.
_COUNTED: Final = ("model.layers.", "layers.", "blk.", "fc.", "markov_head.", "confidence_head.")


def layer_shapes(prefix: str, shape: LayerShape) -> dict[str, Shape]:
    """Tensors of one decoder layer under ``prefix`` (which ends in a full stop)."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, shape.qkv_bias),
        "self_attn.k_proj": (keys, hidden, shape.qkv_bias),
        "self_attn.v_proj": (keys, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, queries, shape.output_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    wanted: dict[str, Shape] = {}
    for name, (rows, columns, bias) in linears.items():
        wanted[f"{prefix}{name}.weight"] = (rows, columns)
        if bias:
            wanted[f"{prefix}{name}.bias"] = (rows,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        wanted[f"{prefix}{name}.weight"] = (hidden,)
    if shape.qk_norm:
        for name in ("q_norm", "k_norm"):
            wanted[f"{prefix}self_attn.{name}.weight"] = (shape.head_dim,)
    return wanted


def target_shapes(config: TargetConfig) -> dict[str, Shape]:
    """Every tensor that a target of this config has, by Hugging Face name."""
    hidden = config.layer.hidden_size
    wanted: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_head:
        wanted["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.layers):
        wanted |= layer_shapes(f"model.layers.{index}.", config.layer)
    return wanted


def drafter_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Every tensor that a drafter of this config must have (embed and head are optional and not among them)."""
    hidden, rank, vocab = config.layer.hidden_size, config.markov_rank, config.vocab_size
    wanted: dict[str, Shape] = {
        "fc.weight": (hidden, len(config.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config.layers):
        wanted |= layer_shapes(f"layers.{index}.", config.layer)
    if config.head != "none":
        wanted["markov_head.markov_w1.weight"] = (vocab, rank)
        wanted["markov_head.markov_w2.weight"] = (config.draft_vocab_size, rank)
    if config.head == "gated":
        wanted["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        wanted["markov_head.gate_proj.bias"] = (rank,)
    if config.head == "rnn":
        wanted["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        wanted["markov_head.joint_proj.bias"] = (3 * rank,)
    if config.confidence_head:
        wanted["confidence_head.proj.weight"] = (1, hidden + (rank if config.confidence_with_markov else 0))
        wanted["confidence_head.proj.bias"] = (1,)
    return wanted


def check_shapes(
    wanted: Mapping[str, Shape], found: Mapping[str, Shape], path: Path, source: str, *, whole: bool = True
) -> None:
    """Compare what the config calls for with what the file holds.

    ``source`` says where the config stands, for the message. Tensors of a layer that the config does not call for
    are refused too (unless ``wanted`` is not the ``whole``): they would change the result, and leaving them out would
    go unseen.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is not accounted for.
    """
    missing = [name for name in wanted if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path} lacks the tensor {missing[0]}{more}, which {source} calls for", "download the model again"
        )
    for name, shape in wanted.items():
        if found[name] != shape:
            raise CheckpointError(
                f"in {path} the tensor {name} has the shape {list(found[name])}, and {source} calls for {list(shape)}",
                "config and weights are of different models; download both again",
            )
    unknown = [name for name in found if whole and name not in wanted and _matters(name)]
    if unknown:
        raise CheckpointError(
            f"{path} holds the tensor {unknown[0]}, which {source} does not account for",
            "config and weights are of different models, or the model is of a kind that is not read",
        )


def _matters(name: str) -> bool:
    return name.startswith(_COUNTED) and not name.endswith("rotary_emb.inv_freq")
