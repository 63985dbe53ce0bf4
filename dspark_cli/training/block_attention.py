"""Attention of draft blocks: each on the context rows before its anchor and on all of itself, under one softmax.

Scores on the context (far) and within the block (near) come from two calls of a fused kernel and are merged by their
log-sum-exp, so no mask of blocks by blocks exists. Backwards each call is given the merged output and log-sum-exp:
then its probabilities, and with them its share of the gradient, are those of the one softmax.

Notation: A anchors, γ block size, C context rows, D head dimension, G key heads, g = heads / G.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from dspark_cli.training.anchor_blocks import AnchorBatch, Span

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def context_masks(batch: AnchorBatch, rows_per_anchor: int, dtype: torch.dtype) -> list[Tensor]:
    """For each sequence what to add to scores, [a·rows_per_anchor, S]: −inf where a row is not before the anchor."""
    masks = []
    for span in batch.spans:
        late = batch.context_at[span.context] >= batch.anchor_at[span.anchors].unsqueeze(1)
        mask = torch.zeros(late.shape, dtype=dtype, device=late.device).masked_fill_(late, -torch.inf)
        masks.append(mask.repeat_interleave(rows_per_anchor, 0))
    return masks


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, spans: Seq[Span], masks: Seq[Tensor]
) -> Tensor:
    """Attention [A·γ, heads·D] of all blocks.

    Args:
        q: [A, γ, heads, D], of the blocks.
        k: [A, γ, G, D].
        v: [A, γ, G, D].
        past_k: [C, G, D], of the context rows.
        past_v: [C, G, D].
        spans: which context rows and anchors belong together.
        masks: of ``context_masks`` with γ·g rows an anchor; at least one row is open to each anchor.
    """
    anchors, block, heads, dim = q.shape
    groups = k.shape[2]
    grouped = q.view(anchors, block, groups, heads // groups, dim).permute(2, 0, 1, 3, 4)
    rows = grouped.reshape(groups, anchors, -1, dim)
    attend = _fused if q.device.type == "cpu" else _plain
    out = attend(rows, k, v, past_k, past_v, spans, masks)
    return out.view(grouped.shape).permute(1, 2, 0, 3, 4).reshape(anchors * block, heads * dim)


def _fused(*inputs: Any) -> Tensor:
    return _BlockAttention.apply(*inputs)  # type: ignore[no-untyped-call, no-any-return]


def _plain(
    q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, spans: Seq[Span], masks: Seq[Tensor]
) -> Tensor:
    """The same by its definition, for devices without that kernel."""
    out = []
    own_k, own_v = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)
    for span, mask in zip(spans, masks, strict=True):
        mine, past = q[:, span.anchors], slice(span.context.start, span.context.stop)
        far = mine.flatten(1, 2) @ past_k[past].permute(1, 2, 0) * q.shape[-1] ** -0.5 + mask
        far = far.view(*mine.shape[:3], -1)
        near = mine @ own_k[:, span.anchors].mT * q.shape[-1] ** -0.5
        both = torch.cat((far, near), -1).softmax(-1)
        of_past, of_own = both[..., : far.shape[-1]], both[..., far.shape[-1] :]
        seen = (of_past.flatten(1, 2) @ past_v[past].transpose(0, 1)).view(mine.shape)
        out.append(seen + of_own @ own_v[:, span.anchors])
    return torch.cat(out, 1)


class _BlockAttention(torch.autograd.Function):
    """q [G, A, γ·g, D] → [G, A, γ·g, D]; the rest as in ``block_attention``."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, spans: Seq[Span], masks: Seq[Tensor]
    ) -> Tensor:
        near_out, near_mass = _forward(*_near(q, k, v))
        near_out, near_mass = near_out.view(q.shape), near_mass.view(q.shape[:-1])
        out, mass = torch.empty_like(near_out), torch.empty_like(near_mass)
        for span, mask in zip(spans, masks, strict=True):
            far_out, far_mass = _forward(*_far(q, past_k, past_v, span), attn_mask=mask)
            mine = near_mass[:, span.anchors]
            far_mass = far_mass.view(mine.shape)
            both = torch.logaddexp(far_mass, mine, out=mass[:, span.anchors])
            part = torch.mul(far_out.view(out[:, span.anchors].shape), (far_mass - both).exp_().unsqueeze(-1))
            part.addcmul_(near_out[:, span.anchors], (mine - both).exp_().unsqueeze(-1))
            out[:, span.anchors] = part
        ctx.save_for_backward(q, k, v, past_k, past_v, out, mass)
        ctx.spans, ctx.masks = spans, masks
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, past_k, past_v, out, mass = ctx.saved_tensors
        near = (x.flatten(0, 1).unsqueeze(1) for x in (grad.to(out.dtype), out, mass))
        near_grad, near_out, near_mass = near
        by_near = _backward(near_grad, *_near(q, k, v), near_out, near_mass, 0.0, False)
        by_q = by_near[0].view(q.shape).to(q.dtype)
        groups, anchors = q.shape[:2]
        by_k, by_v = (x.view(groups, anchors, *x.shape[2:]).permute(1, 2, 0, 3).to(q.dtype) for x in by_near[1:])
        out = out.to(q.dtype)
        by_past_k, by_past_v = torch.zeros_like(past_k), torch.zeros_like(past_v)
        for span, mask in zip(ctx.spans, ctx.masks, strict=True):
            given = (x[:, span.anchors].flatten(1, 2).unsqueeze(0) for x in (grad, out, mass))
            far_grad, far_out, far_mass = given
            by_far = _backward(
                far_grad, *_far(q, past_k, past_v, span), far_out, far_mass.contiguous(), 0.0, False, attn_mask=mask
            )
            by_q[:, span.anchors] += by_far[0].view(q[:, span.anchors].shape)
            by_past_k[span.context] = by_far[1][0].transpose(0, 1)
            by_past_v[span.context] = by_far[2][0].transpose(0, 1)
        return by_q, by_k, by_v, by_past_k, by_past_v, None, None


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Within a block there are too few rows for bfloat16 to be fast."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _near(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query [G·A, 1, γ·g, D], key and value [G·A, 1, γ, D] of the blocks as a batch."""
    wide = _wide(q.dtype)
    k, v = (x.to(wide).permute(2, 0, 1, 3) for x in (k, v))
    return q.to(wide).flatten(0, 1).unsqueeze(1), k.flatten(0, 1).unsqueeze(1), v.flatten(0, 1).unsqueeze(1)


def _far(q: Tensor, past_k: Tensor, past_v: Tensor, span: Span) -> tuple[Tensor, Tensor, Tensor]:
    """Query [1, G, a·γ·g, D], key and value [1, G, S, D] of one sequence."""
    rows = q[:, span.anchors].flatten(1, 2).unsqueeze(0)
    k, v = (x[span.context].transpose(0, 1).unsqueeze(0) for x in (past_k, past_v))
    return rows, k, v
