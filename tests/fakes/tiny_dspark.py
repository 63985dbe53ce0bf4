"""The real DSpark drafter with random weights, small enough to be enumerated, in float64 so that q is exact."""

from __future__ import annotations

import torch
from dspark_kernels import REFERENCE
from torch import Tensor

from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig
from tests.fakes.memory_weights import MemoryWeights

HEADS = ("vanilla", "gated", "rnn", "none")


def tiny_dspark(
    head: str, *, block_size: int = 2, confidence: bool = True, seed: int = 7, draft_ids: tuple[int, ...] | None = None
) -> DSparkDrafter:
    """A one-layer drafter over 4 tokens, or ``draft_ids`` of them, for the taps (one-hot ids) of ``TableTarget(4)``.

    Weights are normal times 0.6: loud enough for x_{k−1} to matter, soft enough for every draft to happen.
    """
    vocab, hidden, rank, taps = 4, 4, 3, (0, 2)
    rows = vocab if draft_ids is None else len(draft_ids)
    shape = LayerShape(hidden, 6, heads=2, kv_heads=1, head_dim=4, norm_eps=1e-6, rope=RopeConfig(), qk_norm=True)
    markov = head != "none"
    config = DrafterConfig(
        layer=shape, layers=1, block_size=block_size, mask_token_id=3, taps=taps, target_layers=4, vocab_size=vocab,
        draft_vocab_size=rows, head=head, markov_rank=rank if markov else 0, confidence_head=confidence,
        confidence_with_markov=confidence and markov,
    )  # fmt: skip
    sizes = {
        "embed_tokens.weight": (vocab, hidden), "lm_head.weight": (rows, hidden),
        "fc.weight": (hidden, len(taps) * hidden),
        "layers.0.self_attn.q_proj.weight": (8, hidden), "layers.0.self_attn.k_proj.weight": (4, hidden),
        "layers.0.self_attn.v_proj.weight": (4, hidden), "layers.0.self_attn.o_proj.weight": (hidden, 8),
        "layers.0.mlp.gate_proj.weight": (6, hidden), "layers.0.mlp.up_proj.weight": (6, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, 6),
    }  # fmt: skip
    norms = {"norm": 4, "hidden_norm": 4, "layers.0.self_attn.q_norm": 4, "layers.0.self_attn.k_norm": 4}
    norms |= {f"layers.0.{name}_layernorm": 4 for name in ("input", "post_attention")}
    if markov:
        sizes |= {"markov_head.markov_w1.weight": (vocab, rank), "markov_head.markov_w2.weight": (rows, rank)}
    if head == "gated":
        sizes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
    if head == "rnn":
        sizes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        sizes["markov_head.joint_proj.bias"] = (3 * rank,)
    if confidence:
        sizes["confidence_head.proj.weight"] = (1, hidden + (rank if markov else 0))
        sizes["confidence_head.proj.bias"] = (1,)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {name: torch.randn(size, generator=generator) * 0.6 for name, size in sizes.items()}
    weights |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    return DSparkDrafter(config, MemoryWeights(weights), REFERENCE, dtype=torch.float64, draft_ids=ids)
