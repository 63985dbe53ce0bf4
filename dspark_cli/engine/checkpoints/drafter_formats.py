"""Open a drafter's folder: which layout it has, its config, its tensors. DeepSpec and speculators are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dspark_cli.engine.checkpoints.deepspec_config import WAY_OUT, deepspec_config
from dspark_cli.engine.checkpoints.fields import Fields, read_json_object
from dspark_cli.engine.checkpoints.gguf_container import read_container
from dspark_cli.engine.checkpoints.safetensors_weights import SafetensorsWeights, open_safetensors
from dspark_cli.engine.checkpoints.speculators_config import is_speculators, speculators_config, target_ids
from dspark_cli.engine.checkpoints.tensor_shapes import check_shapes, drafter_shapes
from dspark_cli.engine.model_config import DrafterConfig, WeightSource
from dspark_cli.errors import CheckpointError

# Some exports name the confidence head so.
_RENAMED: Final = {"confidence_proj.": "confidence_head.proj."}


@dataclass(frozen=True)
class DrafterCheckpoint:
    """A drafter whose files, config and tensor shapes were checked; no weight has been read yet.

    ``weights`` holds ``embed_tokens.weight`` and ``lm_head.weight`` only if the file does (ask with ``in``).
    ``draft_ids`` int64 [V_draft] are the target ids of a reduced draft vocabulary, None for the whole one.
    ``calibration`` is the parsed calibration.json beside the config, None without one.
    """

    config: DrafterConfig
    weights: WeightSource
    path: Path
    draft_ids: Tensor | None = None
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
    if is_speculators(values):
        config = speculators_config(values, where)
    elif (layout := _foreign_layout(values, where)) is not None:
        raise CheckpointError(f"{path} is {layout}", WAY_OUT)
    else:
        config = deepspec_config(values, where)
    weights = open_safetensors(path, _RENAMED)
    draft_ids = _draft_ids(config, weights, path)
    wanted = drafter_shapes(config)
    hidden = config.layer.hidden_size
    shared = {"embed_tokens.weight": (config.vocab_size, hidden), "lm_head.weight": (config.draft_vocab_size, hidden)}
    wanted |= {name: shape for name, shape in shared.items() if name in weights}
    check_shapes(wanted, weights.shapes, path, "its config.json")
    weights = weights.only(wanted)
    weights.check_dtypes(path)
    calibration = path / "calibration.json"
    known = read_json_object(calibration) if calibration.exists() else None
    return DrafterCheckpoint(config, weights, path, draft_ids, known)


def _draft_ids(config: DrafterConfig, weights: SafetensorsWeights, path: Path) -> Tensor | None:
    """Target ids of a reduced draft vocabulary, from the file's ``d2t``."""
    if config.draft_vocab_size == config.vocab_size and "d2t" not in weights:
        return None
    check_shapes({"d2t": (config.draft_vocab_size,)}, weights.shapes, path, "its config.json", whole=False)
    return target_ids(weights.integers("d2t"), config, str(path))


def _not_a_folder(path: Path) -> CheckpointError:
    if not path.exists():
        return CheckpointError(f"there is no drafter at {path}", "give the folder of a DSpark drafter")
    if path.suffix.lower() != ".gguf":
        return CheckpointError(f"{path} is no folder", "give the folder of a DSpark drafter")
    architecture = read_container(path).metadata.get("general.architecture")
    if architecture == "dflash":
        return CheckpointError(f"{path} is a drafter in the GGUF layout, which is not read yet", WAY_OUT)
    return CheckpointError(f"{path} is a GGUF file of the architecture {architecture!r}, not a drafter", WAY_OUT)


def _foreign_layout(values: Mapping[str, Any], where: str) -> str | None:
    """What else than the DeepSpec layout this is, in words that end a sentence; None for DeepSpec."""
    family = values.get("model_type")
    architectures = Fields(values, where).texts("architectures")
    names = " ".join(architectures)
    if "Gemma4" in names or str(family).startswith("gemma"):
        return "a Gemma 4 drafter, which is not read yet"
    if "DFlashDraftModel" in names:
        return "a drafter in the DFlash layout of z-lab, which is not read yet"
    if "DSpark" not in names and any(name.endswith("ForCausalLM") for name in architectures):
        return f"a whole model ({architectures[0]}), not a DSpark drafter"
    if family != "qwen3":
        return f"a drafter of the family {family!r}, which is not read yet"
    return None
