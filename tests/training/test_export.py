"""What is written is read back as the same drafter, also through the engine, and never left half written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_cli.engine.checkpoints.drafter_formats import open_drafter
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig
from dspark_cli.errors import DsparkError
from dspark_cli.events import Round
from dspark_cli.training import export
from dspark_cli.training.export import TargetNames, config_values, drafter_layer, write_drafter

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"
TARGET = TargetNames("tiny", ("Qwen3ForCausalLM",), 512)
HEADS = ("none", "vanilla", "gated", "rnn")
PROMPTS = ("the small cat ", "3,5,7,", "12+30=")
# Of the 64 tokens those that the target says most in reply to the prompts, and a few that it does not.
FEW = torch.tensor([2, 3, *range(8, 24), 31, 40, 41, 45, 50, 52, 60])


def golden(head: str, ids: Tensor | None = None) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """A golden drafter, or its rows for ``ids``."""
    config = open_drafter(GOLDEN / f"drafter-{head}").config
    tensors = load_file(GOLDEN / f"drafter-{head}" / "model.safetensors")
    if ids is None:
        return config, tensors
    for name in {"lm_head.weight", "markov_head.markov_w2.weight"} & set(tensors):
        tensors[name] = tensors[name][ids]
    return replace(config, draft_vocab_size=len(ids)), tensors


def rounds(drafter: Path | None, sampling: Sampling = Sampling()) -> list[tuple[object, ...]]:  # noqa: B008 (frozen)
    """What the engine drafts and says with the drafter in a folder."""
    options = EngineOptions(GOLDEN / "target", "tiny", drafter, "d", device="cpu", weight_cache=False)
    engine = Engine.open(options)
    found: list[tuple[object, ...]] = []
    for text in PROMPTS:
        request = engine.request(engine.raw_prompt(text), sampling=sampling, max_new_tokens=32)
        found += [
            (event.draft, event.accepted, event.tokens)
            for event in engine.generate(request)
            if isinstance(event, Round)
        ]
    engine.close()
    return found


def said(found: list[tuple[object, ...]]) -> list[int]:
    return [token for *_, tokens in found for token in tokens]  # type: ignore[attr-defined]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("full", [False, True])
def test_a_whole_vocabulary_comes_back(head: str, full: bool, tmp_path: Path) -> None:
    config, tensors = golden(head)
    write_drafter(tmp_path / "d", config, tensors, None, TARGET, dtype=torch.float32, full=full, extra={"note": 3})
    found = open_drafter(tmp_path / "d")
    assert found.config == config
    assert found.draft_ids is None
    for name, tensor in tensors.items():
        assert (name in found.weights) == (full or name not in export.SHARED)
        if name in found.weights:
            assert torch.equal(found.weights.tensor(name), tensor)
    values = json.loads((tmp_path / "d" / "config.json").read_text())
    assert (values["architectures"], values["note"]) == (["Qwen3DSparkModel"], 3)
    if head == "gated":
        assert rounds(tmp_path / "d") == rounds(GOLDEN / "drafter-gated")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("full", [False, True])
def test_a_reduced_vocabulary_comes_back(head: str, full: bool, tmp_path: Path) -> None:
    config, tensors = golden(head, FEW)
    write_drafter(tmp_path / "d", config, tensors, FEW, TARGET, dtype=torch.float32, full=full)
    found = open_drafter(tmp_path / "d")
    assert found.config == config
    assert found.draft_ids is not None
    assert torch.equal(found.draft_ids, FEW)
    for name, tensor in tensors.items():
        if full or name not in export.SHARED:
            assert torch.equal(found.weights.tensor(name), tensor)
    stored = load_file(tmp_path / "d" / "model.safetensors")
    assert torch.equal(stored["d2t"] + torch.arange(len(FEW)), FEW)
    assert stored["t2d"].nonzero()[:, 0].tolist() == FEW.tolist()
    values = json.loads((tmp_path / "d" / "config.json").read_text())
    assert values["aux_hidden_state_layer_ids"] == [tap + 1 for tap in config.taps]
    assert values["speculators_config"]["verifier"]["name_or_path"] == "tiny"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.2), Sampling(temperature=1.0, seed=4)])
def test_the_engine_drafts_the_same_from_a_full_and_a_lean_file(sampling: Sampling, tmp_path: Path) -> None:
    config, tensors = golden("rnn", FEW)
    tensors["lm_head.weight"] = open_target_head()[FEW]
    tensors["embed_tokens.weight"] = open_target_table()
    for name, full in (("lean", False), ("full", True)):
        write_drafter(tmp_path / name, config, tensors, FEW, TARGET, dtype=torch.float32, full=full)
    lean = rounds(tmp_path / "lean", sampling)
    assert lean == rounds(tmp_path / "full", sampling)
    drafted = {token for draft, *_ in lean for token in draft}  # type: ignore[attr-defined]
    assert drafted <= set(FEW.tolist())
    assert len(drafted) > 3
    assert any(accepted for _, accepted, _ in lean)
    if sampling.greedy:
        assert said(lean) == said(rounds(None, sampling))
    assert sum(f.stat().st_size for f in (tmp_path / "lean").iterdir()) < sum(
        f.stat().st_size for f in (tmp_path / "full").iterdir()
    )


def open_target_table() -> Tensor:
    return load_file(GOLDEN / "target" / "model.safetensors")["model.embed_tokens.weight"]


def open_target_head() -> Tensor:
    tensors = load_file(GOLDEN / "target" / "model.safetensors")
    return tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])


def test_float16_halves_the_file_and_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    config, tensors = golden("vanilla")
    write_drafter(tmp_path / "h", config, tensors, None, TARGET)
    assert {tensor.dtype for tensor in load_file(tmp_path / "h" / "model.safetensors").values()} == {torch.float16}
    tensors["fc.weight"] = tensors["fc.weight"] * 1e6
    with pytest.raises(DsparkError, match=r"fc\.weight holds values that float16"):
        write_drafter(tmp_path / "i", config, tensors, None, TARGET)
    assert not (tmp_path / "i").exists()
    write_drafter(tmp_path / "i", config, tensors, None, TARGET, dtype=torch.float32)


def test_a_failed_write_leaves_the_old_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = golden("vanilla")
    write_drafter(tmp_path, config, tensors, None, TARGET)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(stored: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", full_disk)
    with pytest.raises(DsparkError, match="No space left"):
        write_drafter(tmp_path, replace(config, block_size=3), tensors, None, TARGET)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(theta=1e6),
        RopeConfig(theta=500.0, kind="linear", factor=4.0),
        RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 24),
    ],
)
def test_rotary_settings_come_back(rope: RopeConfig, tmp_path: Path) -> None:
    config, tensors = golden("vanilla")
    config = replace(config, layer=replace(config.layer, rope=rope))
    write_drafter(tmp_path, config, tensors, None, TARGET)
    assert open_drafter(tmp_path).config == config


@pytest.mark.parametrize(
    "layer",
    [
        LayerShape(64, 128, 4, 2, 16, 1e-5, RopeConfig(1e6), qkv_bias=True),
        LayerShape(64, 128, 4, 2, 16, 1e-5, RopeConfig(5e5, "factors", factors=(2.0,) * 8), mlp_bias=True),
        LayerShape(64, 128, 4, 2, 16, 1e-5, RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 24), output_bias=True),
    ],
)
def test_a_drafter_s_layer_can_be_said_for_any_target(layer: LayerShape) -> None:
    config, _ = golden("vanilla")
    shape = drafter_layer(layer)
    values = config_values(replace(config, layer=shape), False, TARGET)
    assert (values["rope_theta"], values["rms_norm_eps"], values["attention_bias"]) == (layer.rope.theta, 1e-5, False)
    assert ("rope_scaling" in values) == (layer.rope.kind == "llama3")
    assert drafter_layer(shape) == shape


def test_what_the_layouts_cannot_say_is_refused(tmp_path: Path) -> None:
    config, tensors = golden("vanilla")
    lean = {name: tensor for name, tensor in tensors.items() if name not in export.SHARED}
    for layer in (
        replace(config.layer, qk_norm=False),
        replace(config.layer, qkv_bias=True),
        replace(config.layer, rope=RopeConfig(kind="factors", factors=(1.0,) * 8)),
    ):
        with pytest.raises(ValueError, match=r"layouts|no words"):
            write_drafter(tmp_path, replace(config, layer=layer), tensors, None, TARGET)
    with pytest.raises(ValueError, match=r"embed_tokens\.weight"):
        write_drafter(tmp_path, config, lean, None, TARGET, full=True)
    with pytest.raises(ValueError, match="block_size"):
        write_drafter(tmp_path, config, tensors, None, TARGET, extra={"block_size": 3})
    for ids in (FEW.flip(0), FEW + 60, FEW[:-1]):
        with pytest.raises(ValueError, match="rising ids"):
            write_drafter(tmp_path, replace(config, draft_vocab_size=len(FEW)), tensors, ids, TARGET)
    assert not list(tmp_path.iterdir())
