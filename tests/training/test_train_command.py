"""dspark train on the tiny target: from prompts to a drafter that the engine runs, killed anywhere and resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark_cli import paths
from dspark_cli.commands.process import run_program
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.engine.loading import LoadedPair
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.training import feature_making, trainer
from dspark_cli.training.feature_making import default_taps, make_features, open_features, room_for
from dspark_cli.training.prompt_synthesis import SynthesisRecipe

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"
SUMS = [f"{a}+{b}=" for a in range(4, 60) for b in (3, 17, 29)]
SHAPE = ["--layers", "1", "--rank", "8", "--block-size", "4", "--draft-vocabulary", "40", "--precision", "float32"]
TEXT = ["--tokens", "2000", "--reply-tokens", "16"]


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def words(folder: Path, *more: str, anchors: int = 1500) -> list[str]:
    """The command line of a small run into ``folder``."""
    prompts = folder / "prompts.txt"
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text("\n".join(SUMS))
    return [
        "train", "--model", str(GOLDEN / "target"), "--out", str(folder / "out"), "--prompts", str(prompts), *TEXT,
        *SHAPE, "--anchors", str(anchors), "--batch", "64", "--device", "cpu", "--no-weight-cache", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_program(words(folder)) == 0
    return folder


def test_what_was_trained_runs_in_the_engine(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = json.loads((whole / "out" / "config.json").read_text())
    assert (config["draft_vocab_size"], config["block_size"], config["markov_rank"]) == (40, 4, 8)
    assert config["training"]["anchors"] >= 1500
    arguments = ["--model", str(GOLDEN / "target"), "--drafter", str(whole / "out"), "--device", "cpu"]
    assert run_program(["run", *arguments, "--raw", "--schedule", "fixed:4", "--stats", "--json", "8+17="]) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    assert sum(len(event.get("confidence") or []) for event in rounds) > 0
    assert sum(event["accepted"] for event in rounds) > 0


def test_full_writes_embedding_and_head(tmp_path: Path) -> None:
    assert run_program(words(tmp_path, "--full", anchors=128)) == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["embed_tokens.weight"].shape == (64, 64)
    assert tensors["lm_head.weight"].shape == (40, 64)


def _die_at(name: str, number: int) -> None:
    """Make the process kill itself at call ``number`` of os.replace or os.fsync, before it is made."""
    plain: Callable[..., object] = getattr(os, name)
    calls = 0

    def deadly(*given: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given, **more)

    setattr(paths.os, name, deadly)


def _child(arguments: list[str], step: tuple[str, int] | None) -> None:
    torch.set_num_threads(1)
    feature_making._SHARD_TOKENS = 700
    trainer.Course = partial(trainer.Course, checkpoint_seconds=0.02)  # type: ignore[misc, assignment]
    if step is not None:
        _die_at(*step)
    os._exit(run_program(arguments))


def _run_child(arguments: list[str], step: tuple[str, int] | None = None, patience: float | None = None) -> int:
    """The exit code; −9 where it was killed, by itself at ``step`` or from outside after ``patience`` seconds."""
    child = multiprocessing.get_context("fork").Process(target=_child, args=(arguments, step))
    child.start()
    child.join(patience)
    if child.is_alive():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert child.exitcode is not None
    return child.exitcode


def test_killed_at_many_moments_and_resumed_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert _run_child(words(tmp_path / "through")) == 0
    seconds = time.monotonic() - begun
    expected = (tmp_path / "through" / "out" / "model.safetensors").read_bytes()
    chance = random.Random(3)
    killed = trial = 0
    while killed < 20:
        trial += 1
        assert trial <= 12
        folder = tmp_path / f"killed {trial}"
        # Within a write or before a rename, of a shard, an index or a checkpoint, and at random moments.
        moments: list[tuple[tuple[str, int] | None, float | None]] = [
            (None, chance.uniform(0.1, 0.6) * seconds),
            (("fsync", chance.randint(1, 3)), None),
            (("replace", chance.randint(1, 8)), None),
            (None, chance.uniform(0.2, 0.5) * seconds),
            (("replace", chance.randint(1, 5)), None),
        ]
        codes = []
        for step, patience in moments:
            codes.append(_run_child(words(folder, "--resume"), step, patience))
            if codes[-1] == 0:
                break
        killed += codes.count(-signal.SIGKILL)
        assert set(codes) <= {0, -signal.SIGKILL}
        assert _run_child(words(folder, "--resume")) == 0
        assert (folder / "out" / "model.safetensors").read_bytes() == expected
        assert not [*(folder / "out.work").rglob(".*.part"), *(folder / "out").glob(".*.part")]


def test_a_second_run_needs_resume(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_program(words(whole)) == 2
    assert "--resume" in capfd.readouterr().err
    before = (whole / "out" / "model.safetensors").read_bytes()
    assert run_program(words(whole, "--resume", "--seed", "4")) == 1
    assert "another seed" in capfd.readouterr().err
    assert run_program(words(whole, "--resume", "--layers", "2")) == 1
    assert "other options" in capfd.readouterr().err
    assert (whole / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--taps", "0,5"], "layer 5 is the last one"),
        (["--taps", "0,9"], "not all layers"),
        (["--taps", "a"], "no list of layers"),
        (["--head", "lstm"], "vanilla"),
        (["--optimizer", "sgd"], "muon"),
        (["--layers", "0"], "--layers"),
        (["--minutes", "0"], "no budget"),
        (["--greedy-share", "1.5"], "no share"),
        (["--mask-token", "64"], "is no token"),
        (["--draft-vocabulary", "65"], "cannot have 65"),
    ],
)
def test_what_cannot_be_meant_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert run_program(words(tmp_path, *more)) == 2
    assert said in capfd.readouterr().err


def test_too_few_prompts_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = words(tmp_path)
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    assert run_program(arguments) == 2
    assert "2 different prompts" in capfd.readouterr().err
    assert not (tmp_path / "out.work").exists()


@pytest.fixture(scope="module")
def pair() -> LoadedPair:
    return Engine.open(EngineOptions(GOLDEN / "target", "tiny", device="cpu", weight_cache=False)).pair


RECIPE = SynthesisRecipe(most_reply_tokens=10, parallel=4)


def test_features_of_another_target_or_recipe_are_not_mixed_in(pair: LoadedPair, tmp_path: Path) -> None:
    cache = open_features(tmp_path, "this", pair, (0, 3), RECIPE)
    make_features(cache, pair, RECIPE, 100, SUMS, lambda made, wanted: None)
    for identity, taps, recipe, said in (
        ("other", (0, 3), RECIPE, "another target"),
        ("this", (0, 2), RECIPE, "other taps"),
        ("this", (0, 3), SynthesisRecipe(seed=1), "another seed"),
    ):
        with pytest.raises(DsparkError, match=said):
            open_features(tmp_path, identity, pair, taps, recipe)


def test_a_full_disk_is_told_before_and_when_it_comes(
    pair: LoadedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_features(tmp_path / "f", "this", pair, (0, 3), RECIPE)
    size, free = room_for(cache, 1000)
    assert size == 1000 * (3 * 64 * 2 + 4)
    with pytest.raises(DsparkError, match="are free"):
        room_for(cache, free)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths.os, "fsync", full)
    with pytest.raises(DsparkError, match="No space left"):
        make_features(cache, pair, RECIPE, 100, SUMS, lambda made, wanted: None)


def test_prompts_are_used_once_and_may_run_out(
    pair: LoadedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_making, "_SHARD_TOKENS", 60)
    cache = open_features(tmp_path, "this", pair, (0, 3), RECIPE)
    make_features(cache, pair, RECIPE, 10_000, SUMS[:30], lambda made, wanted: None)
    assert cache.next_number == 30
    assert len(cache.shards) > 2
    prompts = []
    for shard in cache:
        edges = shard.starts.tolist()
        for start, reply in zip(edges, shard.reply_starts.tolist(), strict=False):
            prompts.append(pair.tokenizer.decode(shard.ids[start : start + reply].tolist()))
    assert sorted(prompts) == sorted(SUMS[:30])


def test_default_taps_lie_below_the_last_layer() -> None:
    assert default_taps(30) == (5, 13, 20, 25, 28)
    for layers in range(2, 80):
        taps = default_taps(layers)
        assert list(taps) == sorted(set(taps))
        assert 0 <= taps[0] <= taps[-1] < layers - 1


def test_budgets() -> None:
    assert trainer.Budget(anchors=100, seconds=10).spent(50, 2) == 0.5
    assert trainer.Budget(anchors=100, seconds=10).spent(10, 9) == 0.9
    with pytest.raises(UsageError):
        trainer.Budget()


@pytest.mark.parametrize(
    ("kernels", "device", "precision", "expected"),
    [
        ("auto", "cpu", "bfloat16", "mixed"),
        ("auto", "cpu", "float32", "auto"),
        ("onednn", "cpu", "bfloat16", "onednn"),
        ("auto", "cuda", "bfloat16", "auto"),
    ],
)
def test_text_is_made_in_the_type_of_the_learning(kernels: str, device: str, precision: str, expected: str) -> None:
    from dspark_cli.commands.train import _text_kernels
    from dspark_cli.settings import Settings

    assert _text_kernels(Settings(kernels=kernels, device=device), precision) == expected
