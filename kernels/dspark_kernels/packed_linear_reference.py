"""A linear map with an optional residual: the specification."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class ReferenceLinear:
    """``weight`` [out, in] and ``bias`` [out] or None, kept as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``x`` [n, in] → x Wᵀ + bias (+ ``residual``), [n, out]."""
        y = functional.linear(x, self.weight, self.bias)
        return y if residual is None else y + residual
