"""Open a drafter's folder: which layout it has, its config, its tensors. The DeepSpec layout is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from dspark_cli.engine.checkpoints.fields import MOST_LAYERS, Fields, read_json_object
from dspark_cli.engine.checkpoints.gguf_container import read_container
from dspark_cli.engine.checkpoints.hf_config import layer_shape, sliding_windows
from dspark_cli.engine.checkpoints.safetensors_weights import open_safetensors
from dspark_cli.engine.checkpoints.tensor_shapes import check_shapes, drafter_shapes
from dspark_cli.engine.model_config import DrafterConfig, WeightSource
from dspark_cli.errors import CheckpointError

_WAY_OUT: Final = "give a drafter in the DeepSpec layout (architecture Qwen3DSparkModel), or --drafter ngram"
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
# Some exports name the confidence head so.
_RENAMED: Final = {"confidence_proj.": "confidence_head.proj."}


@dataclass(frozen=True)
class DrafterCheckpoint:
    """A drafter whose files, config and tensor shapes were checked; no weight has been read yet.

    ``weights`` holds ``embed_tokens.weight`` and ``lm_head.weight`` only if the file does (ask with ``in``).
    ``calibration`` is the parsed calibration.json beside the config, None without one.
    """

    config: DrafterConfig
    weights: WeightSource
    path: Path
    calibration: Mapping[str, Any] | None = None


def open_drafter(path: Path) -> DrafterCheckpoint:
    """Open the drafter in the folder ``path``; every key, tensor name and shape is checked, no weight is read.

    Raises:
        CheckpointError: a file is missing or damaged, the layout is not read yet, a key is missing or wrong, or the
            tensors are not those that the config calls for.
    """
    if not path.is_dir():
        raise _not_a_folder(path)
    values = read_json_object(path / "config.json")
    where = str(path / "config.json")
    layout = _foreign_layout(values, where)
    if layout is not None:
        raise CheckpointError(f"{path} is {layout}", _WAY_OUT)
    config = drafter_config(values, where)
    weights = open_safetensors(path, _RENAMED)
    wanted = drafter_shapes(config)
    table = (config.vocab_size, config.layer.hidden_size)
    wanted |= {name: table for name in ("embed_tokens.weight", "lm_head.weight") if name in weights}
    check_shapes(wanted, weights.shapes, path, "its config.json")
    weights = weights.only(wanted)
    weights.check_dtypes(path)
    calibration = path / "calibration.json"
    return DrafterCheckpoint(config, weights, path, read_json_object(calibration) if calibration.exists() else None)


def _not_a_folder(path: Path) -> CheckpointError:
    if not path.exists():
        return CheckpointError(f"there is no drafter at {path}", "give the folder of a DSpark drafter")
    if path.suffix.lower() != ".gguf":
        return CheckpointError(f"{path} is no folder", "give the folder of a DSpark drafter")
    architecture = read_container(path).metadata.get("general.architecture")
    if architecture == "dflash":
        return CheckpointError(f"{path} is a drafter in the GGUF layout, which is not read yet", _WAY_OUT)
    return CheckpointError(f"{path} is a GGUF file of the architecture {architecture!r}, not a drafter", _WAY_OUT)


def _foreign_layout(values: Mapping[str, Any], where: str) -> str | None:
    """What else than the DeepSpec layout this is, in words that end a sentence; None for DeepSpec."""
    family = values.get("model_type")
    architectures = Fields(values, where).texts("architectures")
    names = " ".join(architectures)
    if "speculators_model_type" in values or "speculators_config" in values:
        return "a drafter in the speculators layout, which is not read yet"
    if "Gemma4" in names or str(family).startswith("gemma"):
        return "a Gemma 4 drafter, which is not read yet"
    if "DFlashDraftModel" in names:
        return "a drafter in the DFlash layout of z-lab, which is not read yet"
    if "DSpark" not in names and any(name.endswith("ForCausalLM") for name in architectures):
        return f"a whole model ({architectures[0]}), not a DSpark drafter"
    if family != "qwen3":
        return f"a drafter of the family {family!r}, which is not read yet"
    return None


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


def drafter_config(values: Mapping[str, Any], where: str) -> DrafterConfig:
    """The drafter that config.json (parsed: ``values``; named in messages: ``where``) describes.

    Raises:
        CheckpointError: a key is missing, wrong, or asks for something that is not known.
    """
    fields = _flattened(values, where)
    layers, vocab = fields.whole("num_hidden_layers", most=MOST_LAYERS), fields.whole("vocab_size")
    if any(sliding_windows(fields, "qwen3", layers)):
        raise CheckpointError(f"{where} asks for sliding windows, which are not known in drafters", _WAY_OUT)
    mask = fields.whole("mask_token_id", least=0)
    if mask >= vocab:
        raise fields.wrong("mask_token_id", f"an id below the vocabulary size {vocab}")
    head, rank = _head(fields)
    confidence = fields.flag("enable_confidence_head", False)
    with_markov = fields.flag("confidence_head_with_markov", False)
    target_layers = fields.whole("num_target_layers")
    return DrafterConfig(
        layer=layer_shape(fields, "qwen3"),
        layers=layers,
        block_size=fields.whole("block_size"),
        mask_token_id=mask,
        taps=_taps(fields, target_layers),
        target_layers=target_layers,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        head=head,
        markov_rank=rank,
        confidence_head=confidence,
        confidence_with_markov=confidence and with_markov and rank > 0,
    )


def _head(fields: Fields) -> tuple[str, int]:
    rank = fields.whole("markov_rank", 0, least=0)
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
        raise fields.wrong("target_layer_ids", f"layers before the last of the target's {target_layers}")
    return taps
