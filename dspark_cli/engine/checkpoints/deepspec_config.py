"""The drafter that a config.json in the DeepSpec layout describes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from dspark_cli.engine.checkpoints.fields import MOST_LAYERS, Fields
from dspark_cli.engine.checkpoints.hf_config import layer_shape, sliding_windows
from dspark_cli.engine.model_config import DrafterConfig
from dspark_cli.errors import CheckpointError

WAY_OUT: Final = (
    "give a drafter in the DeepSpec layout (architecture Qwen3DSparkModel) or the speculators layout "
    "(speculators_model_type dspark), or --drafter ngram"
)
_KEYS: Final = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "num_target_layers",
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)
_HEADS: Final = ("vanilla", "gated", "rnn")


def _flattened(values: Mapping[str, Any], where: str) -> Fields:
    """The config with each drafter key taken from the first place that has it.

    The order is ``dspark_<key>``, ``dspark_config``, ``dflash_config``, top level.
    """
    fields = Fields(values, where)
    places = (fields.section("dspark_config"), fields.section("dflash_config"), values)
    found: dict[str, Any] = {}
    for key in _KEYS:
        choices = [values.get(f"dspark_{key}"), *(place.get(key) for place in places)]
        found[key] = next((choice for choice in choices if choice is not None), None)
    return Fields({**values, **found}, where)


def deepspec_config(values: Mapping[str, Any], where: str) -> DrafterConfig:
    """The drafter that config.json (parsed: ``values``; named in messages: ``where``) describes.

    Raises:
        CheckpointError: a key is missing, wrong, or asks for something that is not known.
    """
    fields = _flattened(values, where)
    layers, vocab = fields.whole("num_hidden_layers", most=MOST_LAYERS), fields.whole("vocab_size")
    if any(sliding_windows(fields, "qwen3", layers)):
        raise CheckpointError(f"{where} asks for sliding windows, which are not known in drafters", WAY_OUT)
    head, rank = markov_head(fields)
    confidence = fields.flag("enable_confidence_head", False)
    with_markov = fields.flag("confidence_head_with_markov", False)
    target_layers = fields.whole("num_target_layers")
    return DrafterConfig(
        layer=layer_shape(fields, "qwen3"),
        layers=layers,
        block_size=fields.whole("block_size"),
        mask_token_id=mask_token(fields, vocab),
        taps=_taps(fields, target_layers),
        target_layers=target_layers,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        head=head,
        markov_rank=rank,
        confidence_head=confidence,
        confidence_with_markov=confidence and with_markov and rank > 0,
    )


def mask_token(fields: Fields, vocab: int) -> int:
    """The mask token's id, below the vocabulary size ``vocab``."""
    mask = fields.whole("mask_token_id", least=0)
    if mask >= vocab:
        raise fields.wrong("mask_token_id", f"an id below the vocabulary size {vocab}")
    return mask


def markov_head(fields: Fields, default_rank: int = 0) -> tuple[str, int]:
    """Kind and rank of the Markov head; ``none`` and 0 where the rank is 0."""
    rank = fields.whole("markov_rank", default_rank, least=0)
    if rank == 0:
        return "none", 0
    head = fields.text("markov_head_type", "vanilla")
    if head not in _HEADS:
        raise fields.wrong("markov_head_type", "one of " + ", ".join(_HEADS))
    return head, rank


def _taps(fields: Fields, target_layers: int) -> tuple[int, ...]:
    taps = fields.wholes("target_layer_ids", least=-1)
    if not taps or any(later <= earlier for earlier, later in pairwise(taps)):
        raise fields.wrong("target_layer_ids", "a list of strictly increasing layers")
    if taps[-1] >= target_layers - 1:
        raise fields.wrong("target_layer_ids", f"a list of layers before the last of the target's {target_layers}")
    return taps
