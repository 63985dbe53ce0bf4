from __future__ import annotations

import platform
from itertools import product

import pytest
import torch
from dspark_kernels import FBGEMM, ONEDNN, REFERENCE, KernelSet, half_linear, packed_linear, select

# Every build of torch for x86-64 has both; elsewhere there is nothing to test.
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" and not (packed_linear.available() and half_linear.available()),
    reason="this build of torch lacks oneDNN or FBGEMM",
)
both = pytest.mark.parametrize("kernels", [ONEDNN, FBGEMM], ids=lambda kernels: kernels.name)
WIDTHS = range(1, 17)
SHAPES = [(1, 1), (63, 123), (123, 63), (1, 576), (960, 576), (63, 1024), (65, 1025), (576, 1536), (129, 4096)]


@pytest.mark.parametrize(("out", "into"), SHAPES)
@pytest.mark.parametrize(("biased", "added"), product((False, True), repeat=2))
@both
def test_a_row_does_not_depend_on_how_many_stand_beside_it(
    kernels: KernelSet, out: int, into: int, biased: bool, added: bool
) -> None:
    x, weight, other = torch.randn(16, into), torch.randn(out, into), torch.randn(16, out)
    linear = kernels.pack_linear(weight, torch.randn(out) if biased else None)

    def run(start: int, stop: int) -> torch.Tensor:
        return linear(x[start:stop], other[start:stop] if added else None)

    alone = torch.cat([run(row, row + 1) for row in range(16)])
    for width in WIDTHS:
        assert torch.equal(run(0, width), alone[:width]), width
        assert torch.equal(run(16 - width, 16), alone[16 - width :]), width


@pytest.mark.parametrize(("out", "into"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@both
def test_equals_the_reference(kernels: KernelSet, out: int, into: int, rows: int) -> None:
    x, weight, bias, other = (torch.randn(*size) for size in ((rows, into), (out, into), (out,), (rows, out)))
    if kernels is FBGEMM:
        weight = weight.half().float()  # values that it keeps exactly
    wide = REFERENCE.pack_linear(weight.double(), bias.double())
    # Rounding of a sum of ``into`` products of unit size.
    tolerance = 4 * torch.finfo(torch.float32).eps * into
    for residual in (None, other):
        y = kernels.pack_linear(weight, bias)(x, residual)
        expected = wide(x.double(), None if residual is None else residual.double())
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)


@both
def test_takes_rows_that_are_not_contiguous(kernels: KernelSet) -> None:
    x = torch.randn(5, 200)[:, 50:173]
    linear = kernels.pack_linear(torch.randn(63, 123), None)
    assert torch.equal(linear(x), linear(x.contiguous()))


@both
def test_leaves_its_inputs_alone(kernels: KernelSet) -> None:
    x, other, weight = torch.randn(3, 63), torch.randn(3, 7), torch.randn(7, 63)
    before = [tensor.clone() for tensor in (x, other, weight)]
    kernels.pack_linear(weight, None)(x, other)
    assert all(torch.equal(*pair) for pair in zip((x, other, weight), before, strict=True))


@both
def test_does_not_keep_the_weight(kernels: KernelSet) -> None:
    weight = torch.randn(7, 63)
    linear, x = kernels.pack_linear(weight, None), torch.randn(2, 63)
    expected = linear(x)
    weight.fill_(torch.nan)
    assert torch.equal(linear(x), expected)


@both
def test_refuses_weights_of_half_precision(kernels: KernelSet) -> None:
    with pytest.raises(ValueError, match="float32"):
        kernels.pack_linear(torch.randn(7, 63, dtype=torch.float16), None)


def test_fbgemm_rounds_to_the_nearest_float16() -> None:
    weight = torch.randn(63, 123)
    rounded = REFERENCE.pack_linear(weight.half().float(), None)(torch.eye(123))
    assert torch.equal(FBGEMM.pack_linear(weight, None)(torch.eye(123)), rounded)


@pytest.mark.parametrize("value", [65536.0, -65536.0, torch.inf, torch.nan])
def test_fbgemm_refuses_weights_that_float16_cannot_hold(value: float) -> None:
    weight = torch.randn(7, 63)
    weight[3, 5] = value
    with pytest.raises(ValueError, match="float16 can hold"):
        FBGEMM.pack_linear(weight, None)


def test_select() -> None:
    assert select("auto", "cpu") is ONEDNN
    assert select("fbgemm", "cpu") is FBGEMM
    assert select("onednn", torch.device("cpu")) is ONEDNN
    assert select("reference", "cpu") is REFERENCE
    assert select("auto", "cuda") is REFERENCE
    with pytest.raises(ValueError, match="unknown kernels 'fast'"):
        select("fast", "cpu")
    with pytest.raises(ValueError, match="do not run on cuda"):
        select("onednn", "cuda")
    with pytest.raises(ValueError, match="do not run on cuda"):
        select("fbgemm", "cuda")


def test_auto_falls_back_to_the_reference_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "available", lambda: False)
    assert select("auto", "cpu") is REFERENCE
    with pytest.raises(ValueError, match="do not run on cpu"):
        select("onednn", "cpu")
