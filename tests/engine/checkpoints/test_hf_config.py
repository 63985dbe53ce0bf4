from __future__ import annotations

from typing import Any

import pytest
from transformers import Qwen2Config, Qwen3Config

from dspark_cli.engine.checkpoints.hf_config import target_config
from dspark_cli.engine.model_config import RopeConfig, TargetConfig
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.tiny_models import LLAMA3, SIZES


def read(family: str = "llama", **values: Any) -> TargetConfig:
    return target_config({"model_type": family, **SIZES, **values}, "config.json")


LLAMA3_CONFIG = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 24)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, RopeConfig(10000.0)),
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, RopeConfig(1e6)),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}}, RopeConfig(1e6)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeConfig(10000.0, "linear", 4.0)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}}, RopeConfig(7.0, "linear", 2)),
        ({"rope_parameters": LLAMA3}, LLAMA3_CONFIG),
        ({"rope_theta": 5e5, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}, LLAMA3_CONFIG),
    ],
)
def test_rope_is_read_in_its_old_and_its_new_form(values: dict[str, Any], expected: RopeConfig) -> None:
    assert read(**values).layer.rope == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each kind of layer"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": -1}, "rope_theta"),
    ],
)
def test_other_rope_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(**values)


@pytest.mark.parametrize(
    ("family", "values", "expected"),
    [
        ("mistral", {"sliding_window": 8}, (8, 8, 8)),
        ("mistral", {"sliding_window": None}, (None,) * 3),
        ("mistral", {"sliding_window": 0}, (None,) * 3),
        ("mistral", {}, (None,) * 3),
        ("llama", {"sliding_window": 8}, (None,) * 3),
        ("qwen2", {"sliding_window": 8}, (None,) * 3),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 0}, (None,) * 3),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, (None,) * 3),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, (None, 8, 8)),
        ("qwen3", {"sliding_window": 0, "use_sliding_window": True, "max_window_layers": 1}, (None,) * 3),
        (
            "qwen2",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
def test_windows(family: str, values: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert read(family, **values).sliding_windows == expected


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("first", [0, 2, 5])
def test_windows_agree_with_transformers(kind: type[Any], first: int) -> None:
    config = kind(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=first)
    windows = target_config(config.to_dict(), "config.json").sliding_windows
    assert windows == tuple(9 if name == "sliding_attention" else None for name in config.layer_types)
    bare = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    assert target_config(bare, "config.json").sliding_windows == windows


@pytest.mark.parametrize("kinds", [["full_attention"], ["linear_attention"] * 3, "full_attention"])
def test_layer_types_that_are_unknown_or_too_few_are_refused(kinds: object) -> None:
    with pytest.raises(CheckpointError, match=r"layer_types|linear_attention"):
        read("qwen3", layer_types=kinds)


def test_keys_that_are_absent_take_the_defaults_of_transformers() -> None:
    assert read("qwen3").layer.head_dim == 128 == Qwen3Config(**SIZES).head_dim
    assert read("llama").layer.head_dim == 8
    assert read("llama").layer.norm_eps == 1e-6
    assert not read("llama").tied_head
    assert read("llama", num_key_value_heads=None).layer.kv_heads == 6
    assert read("qwen2", attention_bias=True).layer.output_bias is False
    assert read("mistral", attention_bias=True, mlp_bias=True).layer.qkv_bias is False


def test_one_or_many_end_ids() -> None:
    assert read(eos_token_id=[2, 5]).eos_ids == (2, 5)
    assert read(eos_token_id=None, bos_token_id=None).eos_ids == ()
    assert read(eos_token_id=None, bos_token_id=None).bos_id is None
