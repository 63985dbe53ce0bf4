"""The fused attention of draft blocks and the row functions against their definitions, backwards too."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dspark_cli.training import block_attention
from dspark_cli.training.anchor_blocks import BlockMaker, CachedSequence
from dspark_cli.training.row_functions import rms_norm, swiglu

HEADS, GROUPS, DIM, BLOCK = 6, 2, 8, 3


def _case(dtype: torch.dtype):
    """Two sequences, one of whose anchors sees a single context row."""
    chance = torch.Generator().manual_seed(2)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=chance, dtype=torch.float64).to(dtype).requires_grad_()

    lengths = (9, 31)
    sequences = [
        CachedSequence(torch.zeros(n, dtype=torch.int32), torch.zeros(n, 4), torch.zeros(n), 1, True) for n in lengths
    ]
    chosen = [(sequences[0], torch.tensor([1, 5])), (sequences[1], torch.tensor([2, 17, 29]))]
    batch = BlockMaker(BLOCK, 2).make(chosen)
    masks = block_attention.context_masks(batch, BLOCK * HEADS // GROUPS, dtype)
    tensors = [normal(5, BLOCK, HEADS, DIM), *(normal(5, BLOCK, GROUPS, DIM) for _ in range(2))]
    tensors += [normal(len(batch.context_at), GROUPS, DIM) for _ in range(2)]
    return batch, masks, tensors


def _by_definition(batch, q, k, v, past_k, past_v) -> torch.Tensor:
    out = []
    for span in batch.spans:
        for anchor in range(span.anchors.start, span.anchors.stop):
            seen = slice(span.context.start, span.context.start + int(batch.anchor_at[anchor]))
            keys, values = torch.cat((past_k[seen], k[anchor])), torch.cat((past_v[seen], v[anchor]))
            keys, values = (x.repeat_interleave(HEADS // GROUPS, 1).transpose(0, 1) for x in (keys, values))
            scores = (q[anchor].transpose(0, 1) @ keys.mT) * DIM**-0.5
            out.append((scores.softmax(-1) @ values).transpose(0, 1).reshape(BLOCK, -1))
    return torch.cat(out)


@pytest.mark.parametrize("way", ["_fused", "_plain"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_attention_and_its_gradients_follow_the_definition(monkeypatch, dtype, tolerance, way):
    monkeypatch.setattr(block_attention, "_fused", getattr(block_attention, way))
    batch, masks, tensors = _case(dtype)
    out = block_attention.block_attention(*tensors, batch.spans, masks)
    exact = [one.detach().double().requires_grad_() for one in tensors]
    expected = _by_definition(batch, *exact)
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (out * weights.to(dtype)).sum().backward()
    (expected * weights).sum().backward()
    for mine, plain in zip(tensors, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), plain.grad, atol=2 * tolerance, rtol=2 * tolerance)


def test_no_anchor_sees_context_at_or_after_itself():
    batch, masks, tensors = _case(torch.float32)
    before = block_attention.block_attention(*tensors, batch.spans, masks)
    late = (batch.context_at >= 17) & (torch.arange(len(batch.context_at)) >= batch.spans[1].context.start)
    with torch.no_grad():
        tensors[3][late], tensors[4][late] = 100.0, 100.0
    after = block_attention.block_attention(*tensors, batch.spans, masks)
    same = (before == after).view(5, -1).all(1)
    assert same.tolist() == [True, True, True, True, False]


def test_row_functions_have_the_gradients_of_finite_differences():
    chance = torch.Generator().manual_seed(1)
    x, gate, up = (torch.randn(4, 6, generator=chance, dtype=torch.float64).requires_grad_() for _ in range(3))
    weight = torch.randn(6, generator=chance, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), functional.rms_norm(x, (6,), weight, 1e-5))
    torch.testing.assert_close(swiglu(gate, up), functional.silu(gate) * up)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5), (x, weight))
    assert torch.autograd.gradcheck(swiglu, (gate, up))
