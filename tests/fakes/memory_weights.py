"""A checkpoint that lives in memory."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class MemoryWeights:
    """``tensors`` by their Hugging Face names, as a WeightSource (for example a transformers ``state_dict()``)."""

    weights_format = "f32"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().float() for name, tensor in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]
