"""A float32 linear map on the CPU whose weights are stored in float16 (FBGEMM).

A step over few rows takes as long as reading the weights does, so half the bytes is nearly half the time. Products
and sums are float32; a row's result does not depend on how many rows stand beside it (measured at 1 to 16 rows).
Weights that float16 can hold are kept exactly, others are rounded once, to 11 significant bits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def available() -> bool:
    """Whether this build of torch has FBGEMM and would use it."""
    return torch.backends.quantized.engine in ("x86", "fbgemm")


class HalfLinear:
    """``weight`` [out, in] and ``bias`` [out] or None, float32 on the CPU; ``weight`` itself is not kept.

    Raises:
        ValueError: a weight is too large for float16, or not float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if weight.dtype != torch.float32:
            raise ValueError(f"FBGEMM packs float32 weights, not {weight.dtype}")
        if not bool((weight.abs() <= torch.finfo(torch.float16).max).all()):
            raise ValueError("a weight is not a number that float16 can hold")
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``x`` [n, in] → x Wᵀ + bias (+ ``residual``), [n, out]."""
        y: Tensor = self._apply(x, self._packed)
        return y if residual is None else y.add_(residual)
