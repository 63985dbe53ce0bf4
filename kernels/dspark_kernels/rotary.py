"""Rotary position embedding as one complex multiplication."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs of ``x`` [n, heads, D] float32 (last dimension contiguous) by ``rotation`` [n, 1, D/2]."""
    turned: Tensor = x.view(torch.complex64) * rotation
    return turned.view(torch.float32)
