"""Open a Hugging Face folder: config.json and one or many safetensors files."""

from __future__ import annotations

from pathlib import Path

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint


def open_folder(path: Path) -> Checkpoint:
    """Open the target in the folder ``path``."""
    raise NotImplementedError
