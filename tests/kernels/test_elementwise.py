"""Norm, gate and rotation against their specifications."""

from __future__ import annotations

import pytest
import torch
from dspark_kernels import ONEDNN, REFERENCE

DTYPES = [torch.float32, torch.float16]
ROWS = [1, 63, 123]


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    eps = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 63, 576])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, size).to(dtype), torch.rand(size).to(dtype)
    _close(ONEDNN.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_with_a_weight_a_head(rows: int) -> None:
    x, weight = torch.randn(rows, 3, 16), torch.rand(3, 16)
    expected = torch.stack([REFERENCE.rms_norm(x[:, head], weight[head], 1e-5) for head in range(3)], dim=1)
    _close(REFERENCE.rms_norm(x, weight, 1e-5), expected)
    _close(ONEDNN.rms_norm(x, weight, 1e-5), expected)


def test_rms_norm_needs_its_eps() -> None:
    tiny = torch.full((1, 4), 1e-4)
    for kernels in (REFERENCE, ONEDNN):
        torch.testing.assert_close(kernels.rms_norm(tiny, torch.ones(4), 1e-8), tiny * (2e-8**-0.5))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 63, 123])
def test_swiglu(rows: int, size: int) -> None:
    x = 4 * torch.randn(rows, 2 * size)
    _close(ONEDNN.swiglu(x), REFERENCE.swiglu(x))
    gate, up = x[:, :size], x[:, size:]
    _close(REFERENCE.swiglu(x), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 16), (12, 64)])
def test_rotate(rows: int, heads: int, head_dim: int) -> None:
    x = torch.randn(rows, heads + 2, head_dim)[:, :heads]  # as a slice of joined projections
    angles = 100 * torch.rand(rows, 1, head_dim // 2)
    rotation = torch.complex(angles.cos(), angles.sin())
    _close(ONEDNN.rotate(x, rotation), REFERENCE.rotate(x, rotation))


def test_rotate_turns_pairs_by_the_angle() -> None:
    quarter_turn = torch.tensor([[[1j]]])
    for kernels in (REFERENCE, ONEDNN):
        assert kernels.rotate(torch.tensor([[[3.0, 5.0]]]), quarter_turn).tolist() == [[[-5.0, 3.0]]]
