from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig, TargetConfig
from dspark_cli.engine.pairing import check_pairing
from dspark_cli.errors import EXIT_ERROR, PairingError

LAYER = LayerShape(64, 128, 4, 2, 16, 1e-6, RopeConfig())
TARGET = TargetConfig("qwen3", LAYER, 6, 64, False, 512, (None,) * 6)
DRAFTER = DrafterConfig(LAYER, 2, 7, 2, (0, 3, 4), 6, 64, 64, "vanilla", 16, True, True)


@pytest.mark.parametrize("taps", [(0, 3, 4), (-1,), (-1, 0, 1, 2, 3, 4), (4,)])
def test_a_pair_that_fits(taps):
    check_pairing(replace(DRAFTER, taps=taps), TARGET)
    check_pairing(replace(DRAFTER, taps=taps), TARGET, None, "b")
    check_pairing(replace(DRAFTER, taps=taps), TARGET, "b", "b")


def test_the_drafter_may_have_another_attention_than_the_target():
    layer = replace(LAYER, heads=8, kv_heads=1, head_dim=32, intermediate_size=99, rope=RopeConfig(theta=1e6))
    check_pairing(replace(DRAFTER, layer=layer), TARGET)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer": replace(LAYER, hidden_size=63)}, "hidden size 63, the target 64"),
        ({"target_layers": 7}, "a target of 7 layers, this one has 6"),
        ({"taps": ()}, "taps no layer"),
        ({"taps": (0, 3, 3)}, r"\(0, 3, 3\) do not strictly increase"),
        ({"taps": (3, 0)}, "do not strictly increase"),
        ({"taps": (-2, 0)}, "taps layer -2"),
        ({"taps": (0, 5)}, "layer 5, the target's final layer"),
        ({"taps": (0, 6)}, r"layer 6, and the target has only 6 layers \(0 to 5\)"),
        ({"vocab_size": 63}, "vocabulary of 63 tokens, the target of 64"),
        ({"mask_token_id": 64}, "mask token 64 is not among the target's 64"),
        ({"mask_token_id": -1}, "mask token -1"),
    ],
)
def test_a_misfit_is_told_in_one_sentence(change, sentence):
    with pytest.raises(PairingError, match=sentence) as refused:
        check_pairing(replace(DRAFTER, **change), TARGET)
    assert refused.value.way_out
    assert refused.value.exit_code == EXIT_ERROR
    assert "\n" not in str(refused.value)


def test_another_tokenizer_is_refused():
    with pytest.raises(PairingError, match="another tokenizer"):
        check_pairing(DRAFTER, TARGET, "a", "b")
