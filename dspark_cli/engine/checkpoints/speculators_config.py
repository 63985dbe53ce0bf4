"""The drafter that a config.json in the speculators layout describes, and the ids of its reduced vocabulary.

Differences from the DeepSpec layout: the shape stands in ``transformer_layer_config``, where keys that have the
defaults of transformers' Qwen3Config may be absent; id a of ``aux_hidden_state_layer_ids`` means the input of layer a,
so the output of layer a − 1; the draft head may have fewer rows than the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from dspark_cli.engine.checkpoints.deepspec_config import WAY_OUT, markov_head, mask_token
from dspark_cli.engine.checkpoints.fields import MOST_LAYERS, Fields
from dspark_cli.engine.checkpoints.hf_config import layer_shape, sliding_windows
from dspark_cli.engine.model_config import DrafterConfig
from dspark_cli.errors import CheckpointError

ARCHITECTURES: Final = ("DSparkDraftModel", "DSparkSpeculator")
_QWEN3_DEFAULTS: Final = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
}


def is_speculators(values: Mapping[str, Any]) -> bool:
    """Whether a parsed config.json is in the speculators layout."""
    return "speculators_model_type" in values or "speculators_config" in values


def speculators_config(values: Mapping[str, Any], where: str) -> DrafterConfig:
    """The drafter that config.json (parsed: ``values``; named in messages: ``where``) describes.

    Raises:
        CheckpointError: it is no DSpark drafter, or a key is missing, wrong, or asks for something that is not known.
    """
    fields = Fields(values, where)
    _check_kind(fields)
    section = dict(fields.section("transformer_layer_config"))
    shape = Fields({**_QWEN3_DEFAULTS, **section}, f"the transformer_layer_config of {where}")
    family = shape.text("model_type", "qwen3")
    if family != "qwen3":
        raise CheckpointError(f"{where} describes layers of the family {family!r}, which are not known here", WAY_OUT)
    layers, vocab = shape.whole("num_hidden_layers", most=MOST_LAYERS), shape.whole("vocab_size")
    if any(sliding_windows(shape, family, layers)):
        raise CheckpointError(f"{where} asks for sliding windows, which are not known in drafters", WAY_OUT)
    layer = layer_shape(shape, family)
    if fields.whole("target_hidden_size", layer.hidden_size) != layer.hidden_size:
        raise fields.wrong("target_hidden_size", f"the drafter's own hidden size {layer.hidden_size}")
    block_size = fields.whole("block_size", 8)
    _check_slots(fields, block_size)
    head, rank = markov_head(fields, default_rank=256)
    confidence = fields.flag("enable_confidence_head", True)
    target_layers = shape.whole("num_target_layers", None)
    return DrafterConfig(
        layer=layer,
        layers=layers,
        block_size=block_size,
        mask_token_id=mask_token(fields, vocab),
        taps=_taps(fields, target_layers),
        target_layers=target_layers,
        vocab_size=vocab,
        draft_vocab_size=_draft_vocab_size(fields, vocab),
        head=head,
        markov_rank=rank,
        confidence_head=confidence,
        confidence_with_markov=confidence and rank > 0 and fields.flag("confidence_head_with_markov", True),
    )


def target_ids(offsets: Tensor, config: DrafterConfig, where: str) -> Tensor | None:
    """Target ids [V_draft] of the draft vocabulary from the file's ``d2t``; None where it is the whole vocabulary.

    Args:
        offsets: int64 [V_draft]: draft id i is the target id i + offsets[i].
        config: of the drafter.
        where: what holds them, for messages.

    Raises:
        CheckpointError: an id lies outside the target's vocabulary or stands there twice.
    """
    ids = offsets + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise CheckpointError(
            f"the d2t of {where} leads outside the target's {config.vocab_size} tokens", "download the drafter again"
        )
    if len(set(ids.tolist())) < len(ids):
        raise CheckpointError(f"the d2t of {where} gives a token twice", "download the drafter again")
    return None if torch.equal(ids, torch.arange(config.vocab_size)) else ids


def _check_kind(fields: Fields) -> None:
    kind = fields.text("speculators_model_type")
    architectures = fields.texts("architectures")
    if kind != "dspark":
        raise CheckpointError(f"{fields.where} describes a speculators drafter of the kind {kind!r}", WAY_OUT)
    if architectures and not set(architectures).intersection(ARCHITECTURES):
        raise CheckpointError(
            f"{fields.where} describes the architecture {architectures[0]}, and {' or '.join(ARCHITECTURES)} is needed",
            WAY_OUT,
        )


def _check_slots(fields: Fields, block_size: int) -> None:
    """Refuse drafters whose slot k predicts its own position: read as anchor-first they would be accepted rarely."""
    anchor_first = fields.values.get("sample_from_anchor")
    if anchor_first is None:
        anchor_first = _speculative_tokens(fields, block_size) == block_size
    if not isinstance(anchor_first, bool):
        raise fields.wrong("sample_from_anchor", "true or false")
    if not anchor_first:
        raise CheckpointError(
            f"{fields.where} says that slot k predicts its own position (sample_from_anchor is false), which is not "
            "supported yet",
            WAY_OUT,
        )


def _speculative_tokens(fields: Fields, block_size: int) -> int:
    """How many tokens the file's first proposal method drafts; ``block_size`` where it does not say."""
    section = Fields(fields.section("speculators_config"), f"the speculators_config of {fields.where}")
    methods = section.values.get("proposal_methods") or [{}]
    if not isinstance(methods, list) or not isinstance(methods[0], Mapping):
        raise section.wrong("proposal_methods", "a list of objects")
    return Fields(methods[0], f"the proposal_methods of {fields.where}").whole("speculative_tokens", block_size)


def _draft_vocab_size(fields: Fields, vocab: int) -> int:
    size = fields.whole("draft_vocab_size", 32000)
    if size > vocab:
        raise fields.wrong("draft_vocab_size", f"at most the target's {vocab} tokens")
    return size


def _taps(fields: Fields, target_layers: int | None) -> tuple[int, ...]:
    inputs = fields.wholes("aux_hidden_state_layer_ids")
    if not inputs or any(later <= earlier for earlier, later in pairwise(inputs)):
        raise fields.wrong("aux_hidden_state_layer_ids", "a list of strictly increasing layers")
    if target_layers is not None and inputs[-1] >= target_layers:
        raise fields.wrong("aux_hidden_state_layer_ids", f"inputs of the target's {target_layers} layers")
    return tuple(layer - 1 for layer in inputs)
