"""Root mean square norm as one call into torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [..., D] divided by the root of its mean square (plus ``eps``), times ``weight`` [D] or [heads, D]."""
    if weight.dim() == 1:
        return torch.rms_norm(x, weight.shape, weight, eps)
    return torch.rms_norm(x, weight.shape[-1:], None, eps) * weight
