"""Random tiny transformers models of every family, each with the config that ours should have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import transformers
from dspark_kernels import ONEDNN, KernelSet

from dspark_cli.engine.model_config import LayerShape, RopeConfig, TargetConfig
from dspark_cli.engine.targets.torch_target import TorchTarget
from tests.fakes.memory_weights import MemoryWeights

VOCABULARY, LAYERS = 123, 4
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
# More inner features than ONE_ROW_FEATURES, so that both ways through the packed linear are taken.
SHAPE = LayerShape(36, 1100, heads=6, kv_heads=2, head_dim=6, norm_eps=1e-6, rope=RopeConfig())


@dataclass(frozen=True)
class Family:
    """A transformers config class with its arguments, and what differs from ``SHAPE`` on our side."""

    name: str
    shape: LayerShape
    arguments: dict[str, Any]
    tied: bool = False
    windows: tuple[int | None, ...] = (None,) * LAYERS


FAMILIES = {
    "llama-linear": Family("Llama", replace(SHAPE, rope=RopeConfig(500.0, "linear", 3.0)), {"rope_parameters": LINEAR}),
    "llama-llama3": Family(
        "Llama", replace(SHAPE, rope=RopeConfig(10000.0, "llama3", 8.0, 1.0, 4.0, 32)), {"rope_parameters": LLAMA3}
    ),
    "llama-biased": Family(
        "Llama",
        replace(SHAPE, qkv_bias=True, output_bias=True, mlp_bias=True),
        {"attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": Family("Qwen2", replace(SHAPE, qkv_bias=True), {"tie_word_embeddings": True}, tied=True),
    "qwen3": Family("Qwen3", replace(SHAPE, qk_norm=True, head_dim=16), {"head_dim": 16}),
    "qwen3-mixed": Family(
        "Qwen3",
        replace(SHAPE, qk_norm=True, head_dim=16),
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
        windows=(None, None, 7, 7),
    ),
    "mistral": Family("Mistral", SHAPE, {"sliding_window": None}),
    "mistral-window": Family("Mistral", SHAPE, {"sliding_window": 5}, windows=(5,) * LAYERS),
}


@dataclass(frozen=True)
class Pair:
    """A transformers model and what is needed to build ours from it."""

    theirs: Any
    config: TargetConfig

    def ours(self, kernels: KernelSet = ONEDNN, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TorchTarget:
        return TorchTarget(self.config, MemoryWeights(self.theirs.state_dict()), kernels, device, dtype)

    @torch.no_grad()
    def expected(self, ids: tuple[int, ...]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Logits [n, V] and hidden states (embedding output, then each layer) [n, H]."""
        inner = self.theirs.model
        layers: list[torch.Tensor] = []
        hooks = [layer.register_forward_hook(lambda _m, _i, out: layers.append(out)) for layer in inner.layers]
        out = self.theirs(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        for hook in hooks:
            hook.remove()
        return out.logits[0], (out.hidden_states[0][0], *(layer[0] for layer in layers))


@cache
def pair(key: str) -> Pair:
    family, generator = FAMILIES[key], torch.Generator().manual_seed(7)
    arguments = {
        "vocab_size": VOCABULARY, "hidden_size": SHAPE.hidden_size, "intermediate_size": SHAPE.intermediate_size,
        "num_hidden_layers": LAYERS, "num_attention_heads": SHAPE.heads, "num_key_value_heads": SHAPE.kv_heads,
        "rms_norm_eps": SHAPE.norm_eps, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attn_implementation": "eager",
    }  # fmt: skip
    config = getattr(transformers, f"{family.name}Config")(**(arguments | family.arguments))
    model = getattr(transformers, f"{family.name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Large enough that attention is uneven and every bias and norm matters; float16 can hold them all.
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((1 + 0.3 * noise if name.endswith("norm.weight") else 0.15 * noise).half())
    ours = TargetConfig(family.name.lower(), family.shape, LAYERS, VOCABULARY, family.tied, 256, family.windows)
    return Pair(model, ours)
