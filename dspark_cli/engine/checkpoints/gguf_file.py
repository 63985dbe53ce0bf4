"""Open a GGUF file as a target."""

from __future__ import annotations

from pathlib import Path

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint


def open_gguf(path: Path) -> Checkpoint:
    """Open the target in the GGUF file ``path``."""
    raise NotImplementedError
