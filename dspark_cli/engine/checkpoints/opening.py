"""Choose the reader for a path: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint
from dspark_cli.engine.checkpoints.gguf_file import open_gguf
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.errors import CheckpointError


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the target at ``path``.

    Raises:
        CheckpointError: nothing is there, it is neither a folder nor a .gguf file, or its reader refuses it.
    """
    if path.is_dir():
        return open_folder(path)
    if not path.exists():
        raise CheckpointError(f"there is no model at {path}", "give a Hugging Face folder or a .gguf file")
    if path.suffix.lower() == ".gguf":
        return open_gguf(path)
    raise CheckpointError(
        f"{path} is neither a folder nor a .gguf file",
        "give a .gguf file, or the folder that holds config.json and the .safetensors files",
    )
