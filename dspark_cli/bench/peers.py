"""Other engines on the same weights, in the same process and on the same threads.

transformers' ``generate`` is the one that most people would otherwise use. Its model is built from our target's
own configuration and weights, so that only the engine differs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from dspark_cli.bench.modes import Mode, Task, Unavailable
from dspark_cli.bench.samples import Sample
from dspark_cli.engine.model_config import RopeConfig, TargetConfig, WeightSource
from dspark_cli.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from dspark_cli.engine.loading import LoadedPair

TRANSFORMERS = "transformers"
PEERS = (TRANSFORMERS,)

# family of ours → transformers' (configuration, model)
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}


def parse_peers(text: str) -> tuple[str, ...]:
    """The names in a list separated by commas, each once.

    Raises:
        UsageError: a name that is none of the peers.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise UsageError(f"--peers {text!r} names no known peer", f"use {', '.join(PEERS)}")
    return names


def open_peers(
    names: tuple[str, ...], pair: LoadedPair, tell: Callable[[str], None]
) -> tuple[list[Mode], list[Unavailable]]:
    """The peers that can run here, loaded; and the others with the reason."""
    modes: list[Mode] = []
    missing: list[Unavailable] = []
    for opened in (_OPENERS[name](pair, tell) for name in names):
        if isinstance(opened, Unavailable):
            missing.append(opened)
        else:
            modes.append(opened)
    return modes, missing


def _open_transformers(pair: LoadedPair, tell: Callable[[str], None]) -> Mode | Unavailable:
    if importlib.util.find_spec("transformers") is None:
        return Unavailable(TRANSFORMERS, "it is not installed (pip install transformers)")
    if not pair.device.startswith("cpu") or pair.dtype != "float32":
        return Unavailable(
            TRANSFORMERS, f"compared on the CPU in float32 only, and this is {pair.device}, {pair.dtype}"
        )
    tell("building the transformers model from the same weights")
    config = pair.target.config
    if config.family not in _CLASSES:
        return Unavailable(TRANSFORMERS, f"no counterpart is known for the family {config.family}")
    try:
        model = build_model(config, pair.weights)
    except CheckpointError as error:
        return Unavailable(TRANSFORMERS, error.cause)
    return TransformersMode(model, tuple(sorted(pair.stop_ids)))


def build_model(config: TargetConfig, weights: WeightSource) -> Any:
    """The model of transformers with the same shape and the same weights: float32, CPU, sdpa attention.

    Raises:
        CheckpointError: the model has a weight that the source lacks.
    """
    library = importlib.import_module("transformers")
    config_class, model_class = (getattr(library, name) for name in _CLASSES[config.family])
    described = config_class(**config_values(config))
    described._attn_implementation = "sdpa"
    with torch.device("meta"):  # no random weights: all come from the source
        model = model_class(described)
    model.to_empty(device="cpu")
    if config.tied_head:
        model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied head is the embedding and comes once
            if name not in weights:
                raise CheckpointError(f"the checkpoint has no {name}, which transformers' model needs")
            parameter.copy_(weights.tensor(name))
    # The rotary frequencies are no parameters: the empty model has none, so they are computed anew.
    rotary = type(model.model.rotary_emb)(config=described)
    if config.layer.rope.kind == "factors":
        rotary.inv_freq /= torch.tensor(config.layer.rope.factors)
    model.model.rotary_emb = rotary
    return model.eval()


def config_values(config: TargetConfig) -> dict[str, Any]:
    """What transformers calls the fields of our configuration."""
    layer = config.layer
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "rms_norm_eps": layer.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": _rope_values(layer.rope),
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
        "dtype": torch.float32,
    }
    if config.family == "qwen3":
        values["attention_bias"] = layer.qkv_bias
    if config.family == "llama":
        values |= {"attention_bias": layer.qkv_bias, "mlp_bias": layer.mlp_bias}
    return values | _window_values(config)


def _window_values(config: TargetConfig) -> dict[str, Any]:
    windows = {window for window in config.sliding_windows if window is not None}
    if config.family == "llama":
        return {}
    values: dict[str, Any] = {"sliding_window": next(iter(windows), None)}
    if config.family != "mistral":
        values["use_sliding_window"] = bool(windows)
        values["layer_types"] = [
            "full_attention" if window is None else "sliding_attention" for window in config.sliding_windows
        ]
    return values


def _rope_values(rope: RopeConfig) -> dict[str, Any]:
    if rope.kind in ("default", "factors"):
        return {"rope_type": "default", "rope_theta": rope.theta}
    values: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta, "factor": rope.factor}
    if rope.kind == "llama3":
        values |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        }
    return values


@dataclass
class _TokenClock:
    """A streamer of transformers that only looks at the clock: the prompt comes first, then each token."""

    times: list[float] = field(default_factory=list)

    def put(self, value: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class TransformersMode:
    """transformers' ``generate``: greedy, with its key-value cache, the same stop ids and token limit."""

    model: Any
    stop_ids: tuple[int, ...]
    name: str = TRANSFORMERS

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        ids = torch.tensor([task.prompt.ids])
        clock = _TokenClock()
        began = perf_counter()
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                use_cache=True,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(self.stop_ids) or None,
                pad_token_id=0,
                streamer=clock,
            )
        _, first, *_ = clock.times
        return Sample(
            mode=self.name,
            prompt=task.source.id,
            kind=task.source.kind,
            output_ids=tuple(output[0, ids.shape[1] :].tolist()),
            decode_ms=(clock.times[-1] - first) * 1e3,
            first_token_ms=(first - began) * 1e3,
        )


_OPENERS = {TRANSFORMERS: _open_transformers}
