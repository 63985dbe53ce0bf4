"""Drafters in the speculators layout: what is read, and what is refused rather than misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dspark_cli.engine.checkpoints.drafter_formats import DrafterCheckpoint, open_drafter
from dspark_cli.engine.checkpoints.speculators_config import target_ids
from dspark_cli.engine.model_config import RopeConfig
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.test_drafter_formats import edit_tensors, refused
from tests.engine.checkpoints.test_hf_folder import edit_json
from tests.engine.checkpoints.tiny_models import GOLDEN

IDS = torch.tensor([0, 1, 5, 6, 20, 63])
LAYERS = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 64, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "speculators_config": {
        "algorithm": "dspark",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": "someone/model", "architectures": ["Qwen3ForCausalLM"]},
    },
    "transformer_layer_config": LAYERS,
    "draft_vocab_size": 6,
    "block_size": 7,
    "aux_hidden_state_layer_ids": [1, 4, 5],
    "mask_token_id": 2,
    "markov_rank": 16,
    "markov_head_type": "rnn",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The golden rnn drafter with six tokens, as this layout stores it."""
    tensors = load_file(GOLDEN / "drafter-rnn" / "model.safetensors")
    del tensors["embed_tokens.weight"]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        tensors[name] = tensors[name][IDS]
    tensors["d2t"] = IDS - torch.arange(6)
    tensors["t2d"] = torch.zeros(64, dtype=torch.bool).index_fill(0, IDS, True)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def edit_layers(drafter: Path, **changes: Any) -> None:
    layers = {**LAYERS, **changes}
    edit_json(
        drafter / "config.json",
        transformer_layer_config={key: value for key, value in layers.items() if value is not ...},
    )


def test_the_same_drafter_as_in_the_other_layout(drafter: Path) -> None:
    found, other = open_drafter(drafter), open_drafter(GOLDEN / "drafter-rnn")
    config = found.config
    assert config.draft_vocab_size == 6
    assert config.target_layers is None
    ours, theirs = vars(config).copy(), vars(other.config).copy()
    for name in ("draft_vocab_size", "target_layers"):
        del ours[name], theirs[name]
    assert ours == theirs
    assert config.taps == (0, 3, 4)
    assert found.draft_ids is not None
    assert found.draft_ids.dtype == torch.int64
    assert found.draft_ids.tolist() == IDS.tolist()
    assert "d2t" not in found.weights
    assert "embed_tokens.weight" not in found.weights
    assert torch.equal(found.weights.tensor("lm_head.weight"), other.weights.tensor("lm_head.weight")[IDS])


def test_the_head_may_be_left_out(drafter: Path) -> None:
    edit_tensors(drafter, **{"lm_head.weight": None, "t2d": None})
    assert "lm_head.weight" not in open_drafter(drafter).weights


def test_float16_is_read_as_float32(drafter: Path) -> None:
    tensors = load_file(drafter / "model.safetensors")
    save_file({k: t.half() if t.is_floating_point() else t for k, t in tensors.items()}, drafter / "model.safetensors")
    found = open_drafter(drafter)
    assert found.weights.weights_format == "f16"
    assert found.weights.tensor("fc.weight").dtype == torch.float32
    assert torch.equal(found.weights.tensor("fc.weight"), tensors["fc.weight"].half().float())


def test_a_whole_vocabulary_needs_no_ids(drafter: Path) -> None:
    whole = load_file(GOLDEN / "drafter-rnn" / "model.safetensors")
    edit_json(drafter / "config.json", draft_vocab_size=64)
    refused(drafter, "[64]")
    save_file(whole, drafter / "model.safetensors")
    assert open_drafter(drafter).draft_ids is None
    save_file({**whole, "d2t": torch.zeros(64, dtype=torch.int64)}, drafter / "model.safetensors")
    assert open_drafter(drafter).draft_ids is None


def test_keys_with_the_defaults_of_qwen3_may_be_absent(drafter: Path) -> None:
    edit_layers(drafter, rms_norm_eps=..., rope_parameters=..., model_type=...)
    layer = open_drafter(drafter).config.layer
    assert (layer.norm_eps, layer.rope, layer.qk_norm) == (1e-6, RopeConfig(10000.0), True)
    edit_layers(drafter, num_key_value_heads=...)
    refused(drafter, "4 heads, 32 key heads")


def _opened(drafter: Path, **changes: Any) -> DrafterCheckpoint:
    edit_json(drafter / "config.json", **changes)
    return open_drafter(drafter)


def test_which_slot_predicts_what(drafter: Path) -> None:
    other = {"algorithm": "dspark", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 6}]}
    assert _opened(drafter, sample_from_anchor=True, speculators_config=other).config.block_size == 7
    edit_json(drafter / "config.json", sample_from_anchor=...)
    refused(drafter, "sample_from_anchor", "its own position")
    assert _opened(drafter, speculators_config={"algorithm": "dspark"}).config.block_size == 7
    edit_json(drafter / "config.json", sample_from_anchor=False)
    refused(drafter, "its own position")
    edit_json(drafter / "config.json", sample_from_anchor="yes")
    refused(drafter, "true or false")


def test_layers_of_the_target_are_checked_where_they_are_known(drafter: Path) -> None:
    edit_layers(drafter, num_target_layers=6)
    assert open_drafter(drafter).config.target_layers == 6
    edit_layers(drafter, num_target_layers=5)
    refused(drafter, "aux_hidden_state_layer_ids", "5 layers")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculators_model_type": "eagle3"}, ["'eagle3'"]),
        ({"speculators_model_type": ...}, ["speculators_model_type"]),
        ({"architectures": ["Eagle3Speculator"]}, ["Eagle3Speculator", "DSparkDraftModel"]),
        ({"aux_hidden_state_layer_ids": [4, 1, 5]}, ["strictly increasing"]),
        ({"aux_hidden_state_layer_ids": [-1, 1, 5]}, ["aux_hidden_state_layer_ids"]),
        ({"aux_hidden_state_layer_ids": [1, 5]}, ["fc.weight"]),
        ({"aux_hidden_state_layer_ids": ...}, ["aux_hidden_state_layer_ids"]),
        ({"draft_vocab_size": 65}, ["draft_vocab_size", "64"]),
        ({"draft_vocab_size": 5}, ["d2t", "[6]", "[5]"]),
        ({"mask_token_id": 64}, ["mask_token_id"]),
        ({"mask_token_id": ...}, ["mask_token_id"]),
        ({"target_hidden_size": 128}, ["target_hidden_size", "64"]),
        ({"markov_head_type": "lstm"}, ["'lstm'"]),
        ({"markov_rank": ...}, ["[64, 256]"]),
        ({"enable_confidence_head": False}, ["confidence_head", "not account"]),
        ({"transformer_layer_config": {**LAYERS, "model_type": "llama"}}, ["'llama'"]),
        ({"transformer_layer_config": 3}, ["transformer_layer_config"]),
        ({"transformer_layer_config": {**LAYERS, "use_sliding_window": True, "sliding_window": 8,
                                       "layer_types": ["sliding_attention"] * 2}}, ["sliding"]),
        ({"speculators_config": {"proposal_methods": [3]}}, ["proposal_methods"]),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_known_is_refused(drafter: Path, changes: dict[str, Any], words: list[str]) -> None:
    edit_json(drafter / "config.json", **changes)
    refused(drafter, *words)


@pytest.mark.parametrize(
    ("d2t", "words"),
    [
        (None, ["lacks the tensor d2t"]),
        (torch.tensor([0, 0, 3, 3, 16]), ["d2t", "[5]"]),
        (torch.tensor([0, 0, 3, 3, 16, 59]), ["outside the target's 64 tokens"]),
        (torch.tensor([-1, 0, 3, 3, 16, 58]), ["outside the target's 64 tokens"]),
        (torch.tensor([1, 0, 3, 3, 16, 58]), ["a token twice"]),
        (torch.tensor([0.0, 0, 3, 3, 16, 58]), ["d2t", "integers"]),
    ],
)
def test_a_wrong_table_of_ids_is_refused(drafter: Path, d2t: torch.Tensor | None, words: list[str]) -> None:
    edit_tensors(drafter, d2t=d2t)
    with pytest.raises(CheckpointError) as caught:
        open_drafter(drafter)
    assert all(word in str(caught.value) for word in words)


@given(ids=st.sets(st.integers(0, 63), min_size=6, max_size=6))
def test_offsets_lead_to_the_ids(ids: set[int]) -> None:
    config = open_drafter(GOLDEN / "drafter-none").config
    config = type(config)(**{**vars(config), "draft_vocab_size": 6})
    wanted = torch.tensor(sorted(ids))
    found = target_ids(wanted - torch.arange(6), config, "a file")
    assert found is not None
    assert torch.equal(found, wanted)
