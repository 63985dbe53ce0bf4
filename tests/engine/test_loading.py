"""Opening a pair: which kernels it computes with, what it refuses, what a second turn reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine, EngineOptions, Prompt
from dspark_cli.errors import ContextError, UsageError
from dspark_cli.events import Round, Start

GOLDEN = Path(__file__).parents[1] / "golden"
TARGET = GOLDEN / "qwen3-tiny" / "target"
DRAFTERS = sorted((GOLDEN / "qwen3-tiny").glob("drafter-*"))


def half_copy(folder: Path, into: Path) -> Path:
    """The checkpoint in ``folder`` with float16 weights."""
    into.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (into / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, into / "model.safetensors")
    return into


@pytest.mark.parametrize(("kernels", "stored", "said"), [("auto", "f32", "f32"), ("fbgemm", "f32", "f32 as float16")])
def test_float32_checkpoints_stay_float32_unless_asked(kernels: str, stored: str, said: str) -> None:
    engine = Engine.open(EngineOptions(TARGET, "tiny", kernels=kernels))
    assert engine.pair.weights_format.lower() == said.lower()


def test_float16_checkpoints_compute_with_their_own_values(tmp_path: Path) -> None:
    folder = half_copy(TARGET, tmp_path / "half")
    replies = []
    for kernels in ("auto", "reference"):
        engine = Engine.open(EngineOptions(folder, "tiny", kernels=kernels))
        assert engine.pair.weights_format.lower() == "f16"
        request = engine.request(engine.raw_prompt("12+30="), sampling=Sampling(), max_new_tokens=40)
        replies.append(engine.reply(request).output_ids)
    assert replies[0] == replies[1]


def test_unknown_kernels_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--kernels"):
        Engine.open(EngineOptions(TARGET, "tiny", kernels="mmx"))


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda path: path.name)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)], ids=["greedy", "sampled"])
def test_a_second_turn_reads_only_its_new_tokens_and_drafts_as_a_fresh_one(drafter: Path, sampling: Sampling) -> None:
    engine = Engine.open(EngineOptions(TARGET, "tiny", drafter, drafter.name))
    first = engine.request(engine.raw_prompt("12+30="), sampling=sampling, max_new_tokens=20)
    said = engine.reply(first)
    longer = Prompt((*first.prompt_ids, *said.output_ids, *engine.raw_prompt(";7+9=").ids), raw=True)
    second = engine.request(longer, sampling=sampling, max_new_tokens=24)
    events = list(engine.generate(second))
    engine.forget()
    afresh = list(engine.generate(second))
    assert isinstance(events[0], Start)
    assert isinstance(afresh[0], Start)
    assert events[0].cached_tokens == len(first.prompt_ids) + len(said.output_ids) - 1
    assert afresh[0].cached_tokens == 0

    def rounds(all_events: list[object]) -> list[tuple[object, ...]]:
        return [(e.draft, e.accepted, e.tokens) for e in all_events if isinstance(e, Round)]

    assert rounds(list(events)) == rounds(list(afresh))


def test_plain_replies_between_drafted_ones_do_not_mix_up_the_caches() -> None:
    engine = Engine.open(EngineOptions(TARGET, "tiny", DRAFTERS[0], "d"))
    outputs = []
    for schedule in ("fixed:7", "off", "fixed:3", "off", "fixed:7"):
        prompt = engine.raw_prompt("12+30=")
        request = engine.request(prompt, sampling=Sampling(), max_new_tokens=30, schedule=schedule)
        outputs.append(engine.reply(request).output_ids)
    assert len(set(outputs)) == 1


def test_a_reply_that_is_left_early_can_be_followed_by_another() -> None:
    engine = Engine.open(EngineOptions(TARGET, "tiny", DRAFTERS[0], "d"))
    request = engine.request(engine.raw_prompt("12+30="), sampling=Sampling(), max_new_tokens=30)
    whole = engine.reply(request).output_ids
    events = engine.generate(request)
    for _, event in zip(range(4), events, strict=False):
        assert event
    events.close()  # type: ignore[attr-defined]
    assert engine.reply(request).output_ids == whole


def test_limits_are_checked_before_anything_is_made() -> None:
    engine = Engine.open(EngineOptions(TARGET, "tiny", context_length=16))
    assert engine.context_length == 16
    with pytest.raises(ContextError, match="16"):
        engine.request(engine.raw_prompt("1+1=" * 9), sampling=Sampling(), max_new_tokens=5)
    with pytest.raises(ContextError, match="empty"):
        engine.request(engine.raw_prompt(""), sampling=Sampling(), max_new_tokens=5)
    with pytest.raises(UsageError, match="max-new-tokens"):
        engine.request(engine.raw_prompt("1"), sampling=Sampling(), max_new_tokens=0)
    with pytest.raises(UsageError, match="context-length"):
        Engine.open(EngineOptions(TARGET, "tiny", context_length=100_000))


def test_threads_are_those_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        assert Engine.open(EngineOptions(TARGET, "tiny", threads=1)).pair.threads == 1
    finally:
        torch.set_num_threads(before)
