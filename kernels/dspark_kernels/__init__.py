"""Compute kernels with a torch reference beside each.

:func:`select` chooses a :class:`KernelSet` once; it is passed in everywhere and named in the start event.
The references are the specification: plain torch, right on every device and in every floating dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dspark_kernels import (
    half_linear,
    mixed_linear,
    packed_linear,
    packed_linear_reference,
    rms_norm,
    rms_norm_reference,
    rotary,
    rotary_reference,
    swiglu,
    swiglu_reference,
)

NAMES = ("auto", "reference", "onednn", "fbgemm", "mixed")


class Linear(Protocol):
    """A linear map whose weights are laid out for the device."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``x`` [n, in] → x Wᵀ + bias (+ ``residual``, [n, out]) as a new tensor [n, out]."""


@dataclass(frozen=True)
class KernelSet:
    """One function a kernel, all pure.

    - ``pack_linear(weight [out, in], bias [out] | None) -> Linear``
    - ``rms_norm(x [..., D], weight [D] or [heads, D], eps) -> [..., D]``
    - ``swiglu(x [n, 2·I]) -> [n, I]``, gate first, then up
    - ``rotate(x [n, heads, D], rotation [n, 1, D/2] complex64)`` turns the pairs (x[2i], x[2i+1]) of each head
    """

    name: str
    pack_linear: Callable[[Tensor, Tensor | None], Linear]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    rotate: Callable[[Tensor, Tensor], Tensor]


REFERENCE = KernelSet(
    name="reference",
    pack_linear=packed_linear_reference.ReferenceLinear,
    rms_norm=rms_norm_reference.rms_norm,
    swiglu=swiglu_reference.swiglu,
    rotate=rotary_reference.rotate,
)
ONEDNN = KernelSet(
    name="onednn",
    pack_linear=packed_linear.PackedLinear,
    rms_norm=rms_norm.rms_norm,
    swiglu=swiglu.swiglu,
    rotate=rotary.rotate,
)

FBGEMM = replace(ONEDNN, name="fbgemm", pack_linear=half_linear.HalfLinear)
MIXED = replace(ONEDNN, name="mixed", pack_linear=mixed_linear.MixedLinear)


def select(name: str, device: torch.device | str) -> KernelSet:
    """The kernels called ``name`` for ``device``.

    ``onednn`` (packed float32 weights) and ``fbgemm`` (float16 weights, which rounds those that float16 cannot hold)
    are for float32 on the CPU, ``mixed`` (bfloat16 products) for making training text there. ``auto`` takes the
    fastest that changes no weight: ``onednn`` where it runs.

    Raises:
        ValueError: an unknown name, or kernels that do not run on this device or in this build of torch.
    """
    if name not in NAMES:
        raise ValueError(f"unknown kernels '{name}' (known: {', '.join(NAMES)})")
    on_cpu = torch.device(device).type == "cpu"
    runs = {
        "reference": REFERENCE,
        "onednn": ONEDNN if on_cpu and packed_linear.available() else None,
        "fbgemm": FBGEMM if on_cpu and half_linear.available() else None,
        "mixed": MIXED if on_cpu and packed_linear.available() else None,
    }
    kernels = runs["onednn"] or REFERENCE if name == "auto" else runs[name]
    if kernels is None:
        raise ValueError(f"the {name} kernels do not run on {device} with this build of torch")
    return kernels
