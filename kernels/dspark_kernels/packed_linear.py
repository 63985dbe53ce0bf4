"""A float32 linear map on the CPU, its weights packed once for oneDNN.

Verification needs a few rows to cost little more than one, and a row's result must not depend on how many rows
stand beside it. One pack, made for 8 rows, gives both for 1 to 16 rows. The one exception lies in oneDNN: above
1024 input features it sums a single row in another order than two or more, so such a row goes in twice
(measured: the weights are read once all the same, and the time is that of one row).
"""

from __future__ import annotations

import torch
from torch import Tensor

PACK_ROWS = 8
ONE_ROW_FEATURES = 1024


def available() -> bool:
    """Whether this build of torch can pack weights for oneDNN."""
    needed = ("_linear_pointwise", "_reorder_linear_weight")
    return torch._C._has_mkldnn and all(hasattr(torch.ops.mkldnn, name) for name in needed)


class PackedLinear:
    """``weight`` [out, in] and ``bias`` [out] or None, float32 on the CPU; ``weight`` itself is not kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if weight.dtype != torch.float32:
            raise ValueError(f"oneDNN packs float32 weights, not {weight.dtype}")
        self._doubled = weight.shape[1] > ONE_ROW_FEATURES
        self._bias = bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_ROWS)
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._added = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``x`` [n, in] → x Wᵀ + bias (+ ``residual``), [n, out]."""
        if self._doubled and x.shape[0] == 1:
            twice = None if residual is None else torch.cat((residual, residual))
            return self(torch.cat((x, x)), twice)[:1]
        if residual is None:
            y: Tensor = self._plain(x, self._packed, self._bias, "none", [], "")
        else:
            y = self._added(x, residual, self._packed, self._bias, "add")
        return y
