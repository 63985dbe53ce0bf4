"""What any checkpoint's configuration becomes: the shape of a target or of a drafter, free of file formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding, half-split pairing. ``kind`` is ``default``, ``linear``, ``llama3`` or ``factors``.

    With ``factors`` the inverse frequencies are divided by ``factors`` [head_dim / 2], as GGUF files store llama3.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerShape:
    """The shape shared by every layer of a decoder: what attention and MLP need to know."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True)
class TargetConfig:
    """A decoder-only transformer of the Llama, Qwen2, Qwen3, Mistral or SmolLM2 family.

    ``sliding_windows`` has one entry a layer: the window in tokens, or None for full attention.
    """

    family: str
    layer: LayerShape
    layers: int
    vocab_size: int
    tied_head: bool
    context_length: int
    sliding_windows: tuple[int | None, ...]
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class DrafterConfig:
    """A DSpark drafter (or, with ``markov_rank`` 0, a plain parallel one).

    ``head`` is ``vanilla``, ``gated``, ``rnn`` or ``none``. ``taps`` are section-1 tap ids (0-based layer outputs,
    −1 the embedding output). ``target_layers`` is None where the file does not say. ``vocab_size`` is the target's,
    ``draft_vocab_size`` the rows of the draft head.
    """

    layer: LayerShape
    layers: int
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    target_layers: int | None
    vocab_size: int
    draft_vocab_size: int
    head: str
    markov_rank: int
    confidence_head: bool
    confidence_with_markov: bool


@dataclass(frozen=True)
class Calibration:
    """Temperatures, one for each slot of a block, that a drafter's confidence logits are divided by.

    ``greedy`` is for greedy replies, ``sampling`` for drawn ones; None takes the logits as they are. ``name`` says
    where they came from.
    """

    greedy: tuple[float, ...] | None = None
    sampling: tuple[float, ...] | None = None
    name: str = ""


class WeightSource(Protocol):
    """Named tensors of one checkpoint, read when asked for.

    Names are the Hugging Face names (``model.layers.0.self_attn.q_proj.weight``, ``lm_head.weight``; for drafters
    those of the DeepSpec layout, without ``model.``), rows in the half-split RoPE order, float32.
    """

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in float32, shape as Hugging Face stores it ([out, in] for linears)."""

    @property
    def weights_format(self) -> str:
        """How the file stores them, for people: ``f32``, ``bf16``, ``Q4_1`` …"""
