"""Weights rounded to float16: what the quickest kernels of the CPU compute with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark_cli.engine.model_config import WeightSource
from dspark_cli.errors import CheckpointError


@dataclass(frozen=True)
class HalfWeights:
    """``source`` with every matrix rounded to float16 once (a ``model_config.WeightSource``); vectors stay as they are.

    Rounded here and not only where a linear map is packed, so that embedding, tied head, drafters that share them and
    other engines on the same weights all see the same numbers.
    """

    source: WeightSource

    def __contains__(self, name: str) -> bool:
        return name in self.source

    @property
    def weights_format(self) -> str:
        """``Q4_1 as float16``; plain ``f16`` where nothing was rounded."""
        stored = self.source.weights_format
        return stored if stored.lower() == "f16" else f"{stored} as float16"

    def tensor(self, name: str) -> Tensor:
        """The tensor in float32, its values float16's.

        Raises:
            CheckpointError: a value is too large for float16.
        """
        tensor = self.source.tensor(name)
        if tensor.ndim < 2:
            return tensor
        rounded = tensor.half().float()
        if not bool(torch.isfinite(rounded).all()):
            raise CheckpointError(f"the tensor '{name}' has a value too large for float16", "use --kernels onednn")
        return rounded
