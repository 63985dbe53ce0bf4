"""A linear map with bfloat16 weights and products and float32 sums, packed for oneDNN.

Several times faster than float32 where the CPU multiplies bfloat16 in hardware (AMX, AVX512-BF16), many times slower
where it does not, and never exact: for making training text and features, not for replies.
"""

from __future__ import annotations

import torch
from torch import Tensor

PACK_ROWS = 32


class MixedLinear:
    """``weight`` [out, in] and ``bias`` [out] or None, kept in bfloat16; rows and results are float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), PACK_ROWS)
        self._bias = None if bias is None else bias.bfloat16()
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``x`` [n, in] → x Wᵀ + bias (+ ``residual``), [n, out]."""
        y: Tensor = self._linear(x.bfloat16(), self._packed, self._bias, "none", [], "").float()
        return y if residual is None else y.add_(residual)
