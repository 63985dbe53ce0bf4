"""The model that transformers gets is ours: same shape, same weights, same logits, same greedy reply."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from dspark_kernels import select

from dspark_cli.bench import peers
from dspark_cli.bench.peers import TransformersMode, build_model, config_values, parse_peers
from dspark_cli.engine.contracts import Rows
from dspark_cli.engine.model_config import LayerShape, RopeConfig, TargetConfig
from dspark_cli.engine.targets.torch_target import TorchTarget
from dspark_cli.errors import CheckpointError, UsageError
from tests.bench.fakes import task
from tests.fakes.memory_weights import MemoryWeights

LAYER = LayerShape(
    hidden_size=48, intermediate_size=96, heads=4, kv_heads=2, head_dim=16, norm_eps=1e-5, rope=RopeConfig(theta=1e4)
)
LLAMA = TargetConfig(
    family="llama", layer=LAYER, layers=3, vocab_size=63, tied_head=True, context_length=128,
    sliding_windows=(None, None, None), bos_id=0, eos_ids=(1,),
)  # fmt: skip
LLAMA3_ROPE = RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_context=16)
CONFIGS = {
    "llama": LLAMA,
    "llama, biases and llama3 rope": replace(
        LLAMA,
        tied_head=False,
        layer=replace(LAYER, rope=LLAMA3_ROPE, qkv_bias=True, output_bias=True, mlp_bias=True),
    ),
    "llama, linear rope": replace(LLAMA, layer=replace(LAYER, rope=RopeConfig(kind="linear", factor=4.0))),
    "llama, rope factors": replace(
        LLAMA, layer=replace(LAYER, rope=RopeConfig(kind="factors", factors=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)))
    ),
    "mistral, window": replace(LLAMA, family="mistral", tied_head=False, sliding_windows=(5, 5, 5)),
    "qwen2": replace(LLAMA, family="qwen2", layer=replace(LAYER, qkv_bias=True)),
    "qwen3, window in one layer": replace(
        LLAMA, family="qwen3", layer=replace(LAYER, qk_norm=True, head_dim=20), sliding_windows=(None, 6, None)
    ),
}
IDS = tuple(int(i) for i in torch.randint(0, 63, (19,), generator=torch.Generator().manual_seed(3)))


def _weights(config: TargetConfig) -> MemoryWeights:
    """Random weights under the names that transformers gives them."""
    torch.manual_seed(5)
    config_class, model_class = (getattr(transformers, name) for name in peers._CLASSES[config.family])
    model = model_class(config_class(**config_values(config)))
    state = {name: torch.randn_like(tensor) * 0.2 + ("norm" in name) for name, tensor in model.state_dict().items()}
    if config.tied_head:
        del state["lm_head.weight"]
    return MemoryWeights(state)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_our_target(name: str) -> None:
    config = CONFIGS[name]
    weights = _weights(config)
    target = TorchTarget(config, weights, select("reference", "cpu"))
    (ours,) = target.forward([Rows(target.new_cache(), IDS)])
    with torch.inference_mode():
        theirs = build_model(config, weights)(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(theirs, ours.logits, atol=1e-4, rtol=1e-4)


def test_a_greedy_reply_is_timed_and_stops_where_ours_would() -> None:
    weights = _weights(LLAMA)
    target = TorchTarget(LLAMA, weights, select("reference", "cpu"))
    ids = list(IDS)
    for _ in range(9):
        (read,) = target.forward([Rows(target.new_cache(), tuple(ids), len(ids) - 1)])
        ids.append(int(read.logits[-1].argmax()))
    reply = ids[len(IDS) :]
    mode = TransformersMode(build_model(LLAMA, weights), stop_ids=())
    sample = mode.reply(task("p", ids=IDS), 9)
    assert sample.output_ids == tuple(reply)
    assert sample.first_token_ms > 0
    assert sample.decode_ms > 0
    stop = reply[4]
    stopped = replace(mode, stop_ids=(stop,)).reply(task("p", ids=IDS), 9)
    assert stopped.output_ids == tuple(reply[: reply.index(stop) + 1])


def test_a_missing_weight_is_said() -> None:
    weights = _weights(LLAMA)
    del weights._tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"no model\.norm\.weight"):
        build_model(LLAMA, weights)


def test_names_of_peers() -> None:
    assert parse_peers(" transformers, transformers") == ("transformers",)
    for text in ("", "vllm", "transformers,vllm"):
        with pytest.raises(UsageError, match="use transformers"):
            parse_peers(text)
