"""Open a Hugging Face folder: config.json, generation_config.json and one or many safetensors files."""

from __future__ import annotations

from pathlib import Path

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint, GenerationDefaults
from dspark_cli.engine.checkpoints.fields import read_json_object
from dspark_cli.engine.checkpoints.hf_config import generation_defaults, target_config
from dspark_cli.engine.checkpoints.safetensors_weights import open_safetensors
from dspark_cli.engine.checkpoints.tensor_shapes import check_shapes, target_shapes


def open_folder(path: Path) -> Checkpoint:
    """Open the target in the folder ``path``; every file, tensor name and shape is checked, no weight is read.

    Raises:
        CheckpointError: a file is missing or damaged, the model is of an unknown family or quantized, or the
            tensors are not those that the config calls for.
    """
    values = read_json_object(path / "config.json")
    config = target_config(values, str(path / "config.json"))
    weights = open_safetensors(path)
    wanted = target_shapes(config)
    check_shapes(wanted, weights.shapes, path, "its config.json")
    # A tied head may be stored beside the embedding; the config says that it is the same.
    weights = weights.only(wanted)
    weights.check_dtypes(path)
    return Checkpoint(config, weights, path, "folder", values, _generation(path))


def _generation(path: Path) -> GenerationDefaults:
    file = path / "generation_config.json"
    return generation_defaults(read_json_object(file), str(file)) if file.exists() else GenerationDefaults()
