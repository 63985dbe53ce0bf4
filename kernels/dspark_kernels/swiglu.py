"""The gate of the MLP in two passes over memory."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def swiglu(x: Tensor) -> Tensor:
    """``x`` [n, 2·I], gate first, then up → silu(gate) · up, [n, I]."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up
