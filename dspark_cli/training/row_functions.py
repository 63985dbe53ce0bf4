"""RMS norm and SwiGLU with gradients written out: few passes over the rows, nothing kept that can be made again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """X / rms(x) · weight over the last dimension, in the type of ``weight``."""
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call, no-any-return]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return _SwiGlu.apply(gate, up)  # type: ignore[no-untyped-call, no-any-return]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.to(weight.dtype)
        scale = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = rows * scale
        return normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x.to(weight.dtype) * scale
        by_weight = (grad * normed).flatten(0, -2).sum(0)
        # d/dx of x·s with s = (mean x² + ε)^−½: s·(g − n·mean(g·n)), g the gradient before the weight.
        inner = grad * weight
        along = torch.linalg.vecdot(inner, normed).unsqueeze(-1).div_(x.shape[-1])
        return inner.addcmul_(normed, along, value=-1).mul_(scale).to(x.dtype), by_weight, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        by_up = functional.silu(gate).mul_(grad)
        by_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return by_gate, by_up
