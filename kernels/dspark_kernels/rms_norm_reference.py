"""Root mean square norm: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [..., D] divided by the root of its mean square (plus ``eps``), times ``weight`` [D].

    ``weight`` may also be [heads, D], a row for each head of ``x`` [n, heads, D].

    The mean is taken in float32; the result has the dtype of ``x``.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
