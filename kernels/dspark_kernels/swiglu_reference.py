"""The gate of the MLP: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu(x: Tensor) -> Tensor:
    """``x`` [n, 2·I], gate first, then up → gate · sigmoid(gate) · up, [n, I]."""
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up
