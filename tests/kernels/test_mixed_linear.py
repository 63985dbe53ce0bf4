"""The map with bfloat16 products: near float32, float32 outside, never chosen by itself."""

from __future__ import annotations

import pytest
import torch
from dspark_kernels import select
from dspark_kernels.mixed_linear import MixedLinear
from torch.nn import functional


@pytest.mark.parametrize(("rows", "out", "into"), [(1, 63, 123), (5, 64, 576), (33, 123, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_rounded_factors(rows: int, out: int, into: int, bias: bool) -> None:
    weight, x = torch.randn(out, into) / into**0.5, torch.randn(rows, into)
    b = torch.randn(out) if bias else None
    residual = torch.randn(rows, out)
    rounded = functional.linear(x.bfloat16().double(), weight.bfloat16().double(), None if b is None else b.double())
    y = MixedLinear(weight, b)(x)
    assert y.dtype == torch.float32
    # The sum is rounded to bfloat16 (8 significant bits) at its end.
    torch.testing.assert_close(y.double(), rounded, rtol=2**-7, atol=2**-6)
    torch.testing.assert_close(MixedLinear(weight, b)(x, residual), y + residual)


def test_it_is_taken_only_by_name() -> None:
    assert select("mixed", "cpu").pack_linear is MixedLinear
    assert select("auto", "cpu").pack_linear is not MixedLinear
    with pytest.raises(ValueError, match="mixed"):
        select("mixed", "meta")
