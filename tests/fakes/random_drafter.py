"""Small random DSpark drafters, and what they draft when computed plainly: no cache, no packing, double precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig

Tensors = dict[str, Tensor]


def drafter_config(
    head: str = "vanilla", *, confidence: bool = True, with_markov: bool = True, block_size: int = 7,
    taps: tuple[int, ...] = (0, 2), vocab: int = 63, layers: int = 2, rank: int = 5,
) -> DrafterConfig:  # fmt: skip
    """A drafter of hidden size 24 for a target of 4 layers; without a head the rank is 0."""
    shape = LayerShape(24, 40, 4, 2, 8, 1e-6, RopeConfig(theta=500.0), qk_norm=True)
    rank = 0 if head == "none" else rank
    return DrafterConfig(
        shape, layers, block_size, 2, taps, 4, vocab, vocab, head, rank, confidence, confidence and with_markov
    )


def random_tensors(config: DrafterConfig, seed: int = 0) -> Tensors:
    """All tensors of the DeepSpec layout for ``config``, large enough for every part to matter."""
    shape, hidden, rank = config.layer, config.layer.hidden_size, config.markov_rank
    sizes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, hidden),
        "lm_head.weight": (config.draft_vocab_size, hidden),
        "fc.weight": (hidden, len(config.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config.layers):
        layer = {
            "self_attn.q_proj.weight": (shape.heads * shape.head_dim, hidden),
            "self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, hidden),
            "self_attn.v_proj.weight": (shape.kv_heads * shape.head_dim, hidden),
            "self_attn.o_proj.weight": (hidden, shape.heads * shape.head_dim),
            "self_attn.q_norm.weight": (shape.head_dim,),
            "self_attn.k_norm.weight": (shape.head_dim,),
            "mlp.gate_proj.weight": (shape.intermediate_size, hidden),
            "mlp.up_proj.weight": (shape.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, shape.intermediate_size),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        sizes |= {f"layers.{index}.{name}": size for name, size in layer.items()}
    if rank:
        sizes |= {f"markov_head.markov_w{i}.weight": (config.vocab_size, rank) for i in (1, 2)}
    if config.head == "gated":
        sizes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
    if config.head == "rnn":
        joint = (3 * rank, 2 * rank + hidden)
        sizes |= {"markov_head.joint_proj.weight": joint, "markov_head.joint_proj.bias": joint[:1]}
    if config.confidence_head:
        width = hidden + rank * config.confidence_with_markov
        sizes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    generator = torch.Generator().manual_seed(seed)

    def one(name: str, size: tuple[int, ...]) -> Tensor:
        values = torch.randn(size, generator=generator)
        if "norm" in name:
            return 1 + 0.3 * values
        return values if len(size) == 1 or "markov_w" in name else values * size[-1] ** -0.5 * 1.5

    return {name: one(name, size) for name, size in sizes.items()}


def plain_block(config: DrafterConfig, tensors: Tensors, taps: Tensor, anchor: int) -> Tensor:
    """Output rows [γ, H] of the block after the context made from ``taps`` [n, T·H], float64."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    shape, gamma, n = config.layer, config.block_size, taps.shape[0]
    context = _norm(taps.double() @ w["fc.weight"].T, w["hidden_norm.weight"], shape.norm_eps)
    x = w["embed_tokens.weight"][[anchor] + [config.mask_token_id] * (gamma - 1)]
    for index in range(config.layers):

        def lin(name: str, rows: Tensor, index: int = index) -> Tensor:
            return rows @ w[f"layers.{index}.{name}.weight"].T

        def heads(name: str, rows: Tensor, first: int, index: int = index, lin: Callable[..., Tensor] = lin) -> Tensor:
            split = lin(f"self_attn.{name}_proj", rows).unflatten(1, (-1, shape.head_dim))
            if name == "v":
                return split
            normed = _norm(split, w[f"layers.{index}.self_attn.{name}_norm.weight"], shape.norm_eps)
            return _turn(normed, first, shape.rope.theta)

        inner = _norm(x, w[f"layers.{index}.input_layernorm.weight"], shape.norm_eps)
        q = heads("q", inner, n)
        k = torch.cat((heads("k", context, 0), heads("k", inner, n)))
        v = torch.cat((heads("v", context, 0), heads("v", inner, n)))
        parts = []
        for head in range(shape.heads):
            of = head * shape.kv_heads // shape.heads
            seen = (q[:, head] @ k[:, of].T * shape.head_dim**-0.5).softmax(-1)
            parts.append(seen @ v[:, of])
        x = x + lin("self_attn.o_proj", torch.cat(parts, 1))
        inner = _norm(x, w[f"layers.{index}.post_attention_layernorm.weight"], shape.norm_eps)
        gate = lin("mlp.gate_proj", inner)
        x = x + lin("mlp.down_proj", gate * torch.sigmoid(gate) * lin("mlp.up_proj", inner))
    return _norm(x, w["norm.weight"], shape.norm_eps)


def plain_slot(
    config: DrafterConfig, tensors: Tensors, hidden: Tensor, tokens: list[int]
) -> tuple[Tensor, float | None]:
    """Logits [V] and confidence logit of the slot after ``tokens`` (anchor first), from ``hidden`` [γ, H]."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    slot = len(tokens) - 1
    h = hidden[slot]
    logits = w["lm_head.weight"] @ h
    if config.head != "none":
        logits = logits + w["markov_head.markov_w2.weight"] @ _inner(config, w, hidden, tokens)
    if not config.confidence_head:
        return logits, None
    read = h
    if config.confidence_with_markov:
        read = torch.cat((h, w["markov_head.markov_w1.weight"][tokens[-1]]))
    return logits, float(w["confidence_head.proj.weight"][0] @ read + w["confidence_head.proj.bias"][0])


def _inner(config: DrafterConfig, w: Tensors, hidden: Tensor, tokens: list[int]) -> Tensor:
    """What W2 is applied to in the last slot."""
    state = torch.zeros(config.markov_rank, dtype=torch.float64)
    inner = state
    for h, token in zip(hidden, tokens, strict=False):
        e = inner = w["markov_head.markov_w1.weight"][token]
        if config.head == "gated":
            read = w["markov_head.gate_proj.weight"] @ torch.cat((h, e)) + w["markov_head.gate_proj.bias"]
            inner = read.sigmoid() * e
        if config.head == "rnn":
            z = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, h)) + w["markov_head.joint_proj.bias"]
            g, c, o = z.split(config.markov_rank)
            state = g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh()
            inner = o.tanh()
    return inner


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _turn(x: Tensor, first: int, theta: float) -> Tensor:
    """Rotary embedding of [n, heads, D], half-split, rows at positions ``first`` …"""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(first, first + len(x), dtype=torch.float64), frequencies).unsqueeze(1)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
