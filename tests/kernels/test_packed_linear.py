from __future__ import annotations

from itertools import product

import pytest
import torch
from dspark_kernels import ONEDNN, REFERENCE, packed_linear, select

pytestmark = pytest.mark.skipif(not packed_linear.available(), reason="this build of torch has no oneDNN")
WIDTHS = range(1, 17)
SHAPES = [(1, 1), (63, 123), (123, 63), (1, 576), (960, 576), (63, 1024), (65, 1025), (576, 1536), (129, 4096)]


@pytest.mark.parametrize(("out", "into"), SHAPES)
@pytest.mark.parametrize(("biased", "added"), product((False, True), repeat=2))
def test_a_row_does_not_depend_on_how_many_stand_beside_it(out: int, into: int, biased: bool, added: bool) -> None:
    x, weight, other = torch.randn(16, into), torch.randn(out, into), torch.randn(16, out)
    linear = ONEDNN.pack_linear(weight, torch.randn(out) if biased else None)

    def run(start: int, stop: int) -> torch.Tensor:
        return linear(x[start:stop], other[start:stop] if added else None)

    alone = torch.cat([run(row, row + 1) for row in range(16)])
    for width in WIDTHS:
        assert torch.equal(run(0, width), alone[:width]), width
        assert torch.equal(run(16 - width, 16), alone[16 - width :]), width


@pytest.mark.parametrize(("out", "into"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_equals_the_reference(out: int, into: int, rows: int) -> None:
    x, weight, bias, other = (torch.randn(*size) for size in ((rows, into), (out, into), (out,), (rows, out)))
    wide = REFERENCE.pack_linear(weight.double(), bias.double())
    # Rounding of a sum of ``into`` products of unit size.
    tolerance = 4 * torch.finfo(torch.float32).eps * into
    for residual in (None, other):
        y = ONEDNN.pack_linear(weight, bias)(x, residual)
        expected = wide(x.double(), None if residual is None else residual.double())
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)


def test_takes_rows_that_are_not_contiguous() -> None:
    x = torch.randn(5, 200)[:, 50:173]
    linear = ONEDNN.pack_linear(torch.randn(63, 123), None)
    assert torch.equal(linear(x), linear(x.contiguous()))


def test_leaves_its_inputs_alone() -> None:
    x, other, weight = torch.randn(3, 63), torch.randn(3, 7), torch.randn(7, 63)
    before = [tensor.clone() for tensor in (x, other, weight)]
    ONEDNN.pack_linear(weight, None)(x, other)
    assert all(torch.equal(*pair) for pair in zip((x, other, weight), before, strict=True))


def test_does_not_keep_the_weight() -> None:
    weight = torch.randn(7, 63)
    linear, x = ONEDNN.pack_linear(weight, None), torch.randn(2, 63)
    expected = linear(x)
    weight.fill_(torch.nan)
    assert torch.equal(linear(x), expected)


def test_refuses_half_precision() -> None:
    with pytest.raises(ValueError, match="float32"):
        ONEDNN.pack_linear(torch.randn(7, 63, dtype=torch.float16), None)


def test_select() -> None:
    assert select("auto", "cpu") is ONEDNN
    assert select("onednn", torch.device("cpu")) is ONEDNN
    assert select("reference", "cpu") is REFERENCE
    assert select("auto", "cuda") is REFERENCE
    with pytest.raises(ValueError, match="unknown kernels 'fast'"):
        select("fast", "cpu")
    with pytest.raises(ValueError, match="do not run on cuda"):
        select("onednn", "cuda")


def test_auto_falls_back_to_the_reference_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "available", lambda: False)
    assert select("auto", "cpu") is REFERENCE
    with pytest.raises(ValueError, match="do not run on cpu"):
        select("onednn", "cpu")
