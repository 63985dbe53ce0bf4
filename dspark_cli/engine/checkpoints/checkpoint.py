"""What opening a target's checkpoint gives, whatever the file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dspark_cli.engine.model_config import TargetConfig, WeightSource


@dataclass(frozen=True)
class GenerationDefaults:
    """How the makers of a checkpoint want it to be drawn from; None (no ids) where they say nothing.

    ``do_sample`` False means greedy, whatever the temperature beside it.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A target's checkpoint whose files, config and tensor shapes were checked; no weight has been read yet.

    ``path`` is the folder or the .gguf file. ``metadata`` is the parsed config.json of a folder, or the key-values
    of a GGUF file (string arrays as lists, number arrays as numpy arrays).
    """

    config: TargetConfig
    weights: WeightSource
    path: Path
    kind: Literal["folder", "gguf"]
    metadata: Mapping[str, Any]
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)

    @property
    def weights_format(self) -> str:
        """How most of the weights are stored: ``f32``, ``bf16``, ``Q4_1`` …"""
        return self.weights.weights_format
