"""Open a drafter's folder in the DeepSpec layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_cli.engine.model_config import DrafterConfig, WeightSource


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
    """Open the drafter in the folder ``path``."""
    raise NotImplementedError
