"""The DSpark drafter as a trainable module: the engine's forward, for many anchors of many sequences at once.

Tensors have their DeepSpec names, so ``state_dict()`` is what a drafter's file holds; embedding and head belong to
the target, are frozen and stay out of it. Weights are float32; matrix products may run in bfloat16 (``compute``).

Each anchor's block [anchor, mask, …] sees the context rows strictly before its anchor and all of itself.

Notation: A anchors, γ block size, C context rows, H hidden size, D head dimension, T taps, r Markov rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark_cli.engine.layers import RotaryTable
from dspark_cli.engine.model_config import DrafterConfig, LayerShape
from dspark_cli.training.anchor_blocks import AnchorBatch, Span
from dspark_cli.training.block_attention import block_attention, context_masks
from dspark_cli.training.row_functions import rms_norm, swiglu

Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BlockRows:
    """What the sequential part made of a batch, a row a slot.

    ``hidden`` [A·γ, H] normed rows; ``inner`` [A·γ, r], what W2 is applied to, None without a Markov head;
    ``confidence`` [A·γ] raw logits, None without a confidence head.
    """

    hidden: Tensor
    inner: Tensor | None
    confidence: Tensor | None


class DraftModel(nn.Module):
    """The trainable part of a drafter.

    Args:
        config: its shape; ``draft_vocab_size`` is the number of rows of ``head``.
        embedding: the target's table [V, H]. The model lives where this does.
        head: the target's head rows of the draft vocabulary, [V_draft, H].
        compute: the type of matrix products, float32, float64 or bfloat16.
    """

    embedding: Tensor
    head: Tensor

    def __init__(
        self, config: DrafterConfig, embedding: Tensor, head: Tensor, compute: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        shape, hidden = config.layer, config.layer.hidden_size
        if tuple(head.shape) != (config.draft_vocab_size, hidden) or tuple(embedding.shape) != (
            config.vocab_size,
            hidden,
        ):
            raise ValueError("embedding or head do not fit the drafter's config")
        self.config = config
        self.compute = compute
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)
        self.fc = nn.Linear(len(config.taps) * hidden, hidden, bias=False)
        self.hidden_norm = Norm(hidden, shape.norm_eps)
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(config.layers))
        self.norm = Norm(hidden, shape.norm_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank and config.head != "none" else None
        self.confidence_head = ConfidenceHead(config) if config.confidence_head else None
        self._rotary = RotaryTable(shape.rope, shape.head_dim, embedding.device)
        self.to(embedding.device)

    def forward(self, batch: AnchorBatch) -> BlockRows:
        """The slots of all blocks of ``batch``."""
        hidden = self.backbone(batch)
        if self.markov_head is None:
            inner, embeddings = None, None
        else:
            inner, embeddings = self.markov_head(hidden, batch.previous, self.compute)
        confidence = None if self.confidence_head is None else self.confidence_head(hidden, embeddings)
        return BlockRows(hidden, inner, confidence)

    def backbone(self, batch: AnchorBatch) -> Tensor:
        """Normed output rows [A·γ, H]."""
        block = self.config.block_size
        context = self.hidden_norm(_linear(batch.taps, self.fc.weight, self.compute)).to(self.compute)
        ids = batch.anchor_ids.new_full((len(batch.anchor_at), block), self.config.mask_token_id)
        ids[:, 0] = batch.anchor_ids
        x = self.embedding[ids.view(-1)]
        at = (batch.anchor_at.unsqueeze(1) + torch.arange(block, device=batch.anchor_at.device)).view(-1)
        context_turn, block_turn = self._turns(batch.context_at), self._turns(at)
        masks = context_masks(batch, block * (self.config.layer.heads // self.config.layer.kv_heads), self.compute)
        for layer in self.layers:
            assert isinstance(layer, DraftLayer)
            x = layer(x, context, context_turn, block_turn, batch.spans, masks, self.compute)
        out: Tensor = self.norm(x)
        return out

    def _turns(self, positions: Tensor) -> Rotation:
        """Cosine and sine [n, 1, D/2] for ``positions`` [n]."""
        table = self._rotary.at(positions.tolist())
        dtype = self.fc.weight.dtype
        return table.real.to(dtype), table.imag.to(dtype)


class Norm(nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class DraftLayer(nn.Module):
    """One decoder layer of the drafter; see ``engine.layers.DecoderLayer``."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden, eps = shape.hidden_size, shape.norm_eps
        self.shape = shape
        self.input_layernorm = Norm(hidden, eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = Mlp(shape)

    def forward(
        self, x: Tensor, context: Tensor, context_turn: Rotation, block_turn: Rotation,
        spans: list[Span], masks: list[Tensor], compute: torch.dtype,
    ) -> Tensor:  # fmt: skip
        """Rows ``x`` [A·γ, H] → rows after this layer; ``context`` [C, H] is read as it is."""
        attended = self.self_attn(self.input_layernorm(x), context, context_turn, block_turn, spans, masks, compute)
        x = x + attended.to(x.dtype)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x), compute).to(x.dtype)
        return out


class Mlp(nn.Module):
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=shape.mlp_bias)

    def forward(self, rows: Tensor, compute: torch.dtype) -> Tensor:
        rows = rows.to(compute)
        gate, up = (_linear(rows, one.weight, compute, one.bias) for one in (self.gate_proj, self.up_proj))
        return _linear(swiglu(gate, up), self.down_proj.weight, compute, self.down_proj.bias)


class Attention(nn.Module):
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        hidden, dim = shape.hidden_size, shape.head_dim
        self.shape = shape
        self.q_proj = nn.Linear(hidden, shape.heads * dim, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(hidden, shape.kv_heads * dim, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(hidden, shape.kv_heads * dim, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(shape.heads * dim, hidden, bias=shape.output_bias)
        self.q_norm = Norm(dim, shape.norm_eps) if shape.qk_norm else None
        self.k_norm = Norm(dim, shape.norm_eps) if shape.qk_norm else None

    def forward(
        self, rows: Tensor, context: Tensor, context_turn: Rotation, block_turn: Rotation,
        spans: list[Span], masks: list[Tensor], compute: torch.dtype,
    ) -> Tensor:  # fmt: skip
        rows = rows.to(compute)
        q = self._heads(rows, self.q_proj, self.q_norm, block_turn, compute)
        k = self._heads(rows, self.k_proj, self.k_norm, block_turn, compute)
        v = self._heads(rows, self.v_proj, None, None, compute)
        context_k = self._heads(context, self.k_proj, self.k_norm, context_turn, compute)
        context_v = self._heads(context, self.v_proj, None, None, compute)
        q, k, v = (x.view(spans[-1].anchors.stop, -1, *x.shape[1:]) for x in (q, k, v))
        out = block_attention(q, k, v, context_k, context_v, spans, masks)
        return _linear(out, self.o_proj.weight, compute, self.o_proj.bias)

    def _heads(
        self, rows: Tensor, project: nn.Linear, norm: Norm | None, turn: Rotation | None, compute: torch.dtype
    ) -> Tensor:
        """[n, heads, D]"""
        out = _linear(rows, project.weight, compute, project.bias)
        out = out.view(rows.shape[0], -1, self.shape.head_dim)
        if norm is not None:
            out = norm(out)
        return out if turn is None else _turned(out, turn).to(compute)


class MarkovHead(nn.Module):
    """What W2 is applied to, in every slot; see ``engine.drafters.markov_head``."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.layer.hidden_size
        self.kind = config.head
        self.block_size = config.block_size
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)
        elif self.kind != "vanilla":
            raise ValueError(f"unknown Markov head '{self.kind}'")

    def forward(self, hidden: Tensor, previous: Tensor, compute: torch.dtype) -> tuple[Tensor, Tensor]:
        """``hidden`` [A·γ, H] and the tokens before each slot, [A, γ] → inner rows and W1 rows, [A·γ, r] each."""
        embeddings = self.markov_w1(previous.view(-1))
        if self.kind == "vanilla":
            return embeddings, embeddings
        if self.kind == "gated":
            read = torch.cat((hidden, embeddings), 1)
            gate = torch.sigmoid(_linear(read, self.gate_proj.weight, compute, self.gate_proj.bias))
            return gate.to(embeddings.dtype) * embeddings, embeddings
        return self._recurrent(hidden, embeddings, compute), embeddings

    def _recurrent(self, hidden: Tensor, embeddings: Tensor, compute: torch.dtype) -> Tensor:
        rank = embeddings.shape[1]
        of_state, of_rest = self.joint_proj.weight[:, :rank], self.joint_proj.weight[:, rank:]
        # Only the state's share depends on the slot before; the rest is computed for all slots at once.
        known = _linear(torch.cat((embeddings, hidden), 1), of_rest, compute, self.joint_proj.bias)
        known = known.to(hidden.dtype).view(-1, self.block_size, 3 * rank)
        state = torch.zeros_like(known[:, 0, :rank])
        out = []
        for slot in range(self.block_size):
            mixed = known[:, slot] + _linear(state, of_state, compute).to(hidden.dtype)
            gate, candidate, output = mixed.chunk(3, 1)
            state = torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))
            out.append(torch.tanh(output))
        return torch.stack(out, 1).flatten(0, 1)


class ConfidenceHead(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_with_markov
        self.proj = nn.Linear(config.layer.hidden_size + (config.markov_rank if self.with_markov else 0), 1)

    def forward(self, hidden: Tensor, embeddings: Tensor | None) -> Tensor:
        """Raw logits [n] of n slots."""
        if self.with_markov:
            assert embeddings is not None
            hidden = torch.cat((hidden, embeddings), 1)
        logits: Tensor = self.proj(hidden)
        return logits.squeeze(1)


def _linear(rows: Tensor, weight: Tensor, compute: torch.dtype, bias: Tensor | None = None) -> Tensor:
    return functional.linear(rows.to(compute), weight.to(compute), None if bias is None else bias.to(compute))


def _turned(x: Tensor, turn: Rotation) -> Tensor:
    """Rotary embedding of [n, heads, D], half-split."""
    cosine, sine = turn
    a, b = x.to(cosine.dtype).chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)
