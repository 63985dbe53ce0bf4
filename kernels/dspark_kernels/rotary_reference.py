"""Rotary position embedding over neighbouring pairs: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (x[2i], x[2i+1]) of every head of ``x`` [n, heads, D].

    ``rotation`` [n, 1, D/2] complex64 holds cos + i·sin of the angle of each row and pair. The arithmetic is
    float32; the result has the dtype of ``x``.
    """
    cos, sin = torch.view_as_real(rotation).unbind(-1)
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
