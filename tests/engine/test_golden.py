"""Rollouts of the reference implementation, round by round.

A set is a folder with ``golden.json``, the target in ``target`` and the drafters that its runs name. More sets may
stand beside the one here, or in the folder that DSPARK_GOLDEN names (a set, or a folder of sets).

What the files do not say and the data do: the threshold is compared with the confidence of each slot alone, not
with the running product; a threshold of 0 verifies the whole block; ``target_logits_last`` and ``tap_rows_last``
belong to the last row of the first prompt. The reference overshoots its token limit by up to a block, while here
the limit is exact, so the last rounds may be cut by it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from dspark_kernels import select

from dspark_cli.engine.checkpoints.drafter_formats import open_drafter
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.engine.contracts import Request, Rows, Sampling, Scheduler, Target
from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.model_config import TargetConfig, WeightSource
from dspark_cli.engine.pairing import check_pairing
from dspark_cli.engine.round import RoundResult, run_round
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from dspark_cli.engine.scheduler.fixed import Fixed, Off
from dspark_cli.engine.scheduler.threshold import Threshold
from dspark_cli.engine.sequence import Sequence
from dspark_cli.engine.stopping import keep_until_stop
from dspark_cli.engine.targets.torch_target import TorchTarget

# Read at import: inside a test there are no DSPARK_* variables.
_PLACES = [Path(__file__).parents[1] / "golden", *map(Path, filter(None, [os.environ.get("DSPARK_GOLDEN")]))]
SETS = sorted({file.parent for place in _PLACES for file in (*place.glob("golden.json"), *place.glob("*/golden.json"))})
LOGIT_ATOL = 2e-4  # of the target's, as the files ask
CONFIDENCE_ATOL = 2e-5


@dataclass(frozen=True)
class Set:
    """One set, loaded. ``stops`` are the ids that ended the reference's replies."""

    golden: dict[str, Any]
    target: Target
    drafters: dict[str, DSparkDrafter]
    stops: frozenset[int]


@lru_cache(maxsize=2)
def _load(folder: Path) -> Set:
    golden = json.loads((folder / "golden.json").read_text())
    kernels = select("auto", "cpu")
    checkpoint = open_folder(folder / "target")
    drafters = {}
    for name in dict.fromkeys(run["drafter"] for run in golden["runs"]):
        opened = open_drafter(folder / name)
        check_pairing(opened.config, checkpoint.config)
        drafters[name] = DSparkDrafter(opened.config, opened.weights, kernels)
    target = TorchTarget(checkpoint.config, checkpoint.weights, kernels)
    stops = frozenset(checkpoint.generation.eos_ids or checkpoint.config.eos_ids)
    if any(stops.intersection(run["output_ids"][:-1]) for run in golden["runs"]):
        stops = frozenset()  # these rollouts went on beyond the end of a text
    return Set(golden, target, drafters, stops)


def _runs() -> list[Any]:
    found = []
    for folder in SETS:
        for index, run in enumerate(json.loads((folder / "golden.json").read_text())["runs"]):
            name = f"{folder.name}-{run['drafter']}-{run['confidence_threshold']}-{index}"
            found.append(pytest.param(folder, index, id=name))
    return found


@torch.inference_mode()
def _roll(
    loaded: Set, drafter: DSparkDrafter | None, prompt: list[int], limit: int, scheduler: Scheduler
) -> tuple[Sequence, list[tuple[int, RoundResult]]]:
    """The reply's sequence, and each round with the room that it had."""
    target = loaded.target
    request = Request("golden", tuple(prompt), Sampling(), limit, stop_ids=loaded.stops)
    law = ReplyLaw(TokenLaw(request.sampling, prompt, target.vocab_size), SeededStream(0))
    context = drafter.new_context() if drafter is not None else None
    sequence = Sequence(request, list(prompt), target.new_cache(), context, law, context_length=target.context_length)
    taps = drafter.taps if drafter is not None else ()
    (read,) = target.forward([Rows(sequence.cache, tuple(prompt), len(prompt) - 1)], taps)
    if drafter is not None:
        drafter.extend(context, prompt, read.taps)
    sequence.ids.extend(keep_until_stop(sequence, law.law.greedy_tokens(read.logits, ())))
    rounds = []
    while not sequence.finished:
        room = sequence.state(0).room
        (result,) = run_round(target, drafter, scheduler, [sequence])
        rounds.append((room, result))
    return sequence, rounds


def test_there_are_sets():
    assert SETS
    assert len(_runs()) >= 64


@pytest.mark.parametrize(("folder", "index"), _runs())
def test_rounds_are_those_of_the_reference(folder, index):
    loaded = _load(folder)
    run, limit = loaded.golden["runs"][index], loaded.golden["max_new_tokens"]
    drafter = loaded.drafters[run["drafter"]]
    threshold = run["confidence_threshold"]
    scheduler = Threshold(threshold) if threshold > 0 else Fixed(drafter.block_size)
    sequence, rounds = _roll(loaded, drafter, run["prompt_ids"], limit, scheduler)

    assert sequence.reply_ids == run["output_ids"]
    expected = run["rounds"]
    # A round of the reference that only overshoots the limit has no counterpart.
    assert len(expected) - 1 <= len(rounds) <= len(expected)
    for (room, result), theirs in zip(rounds, expected, strict=False):
        verified = result.draft.tokens[: result.plan.planned]
        assert result.anchor == theirs["anchor"]
        assert verified == tuple(theirs["draft"][:room])
        cut_by_stop = result.verdict.outcome == "stop"
        accepted = min(theirs["accepted"], room)
        assert result.verdict.accepted == accepted or (cut_by_stop and result.verdict.accepted < accepted)
        assert (result.draft.confidence_logits is not None) == (drafter.has_confidence and room > 0)
        known = (theirs["confidence_logits"] or [])[:room]
        assert len(known) == (len(verified) if drafter.has_confidence else 0)
        assert (result.draft.confidence_logits or ())[: len(known)] == pytest.approx(known, rel=0, abs=CONFIDENCE_ATOL)
        if threshold > 0 and len(theirs["draft"]) < min(drafter.block_size, room):
            assert result.plan.reason == "cut-by-threshold"
    if len(rounds) < len(expected):
        assert 1 + sum(theirs["accepted"] + 1 for theirs in expected[:-1]) >= limit


@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_plain_decoding_is_the_reference_s_greedy(folder):
    loaded = _load(folder)
    golden = loaded.golden
    prompts = {run["prompt"]: run["prompt_ids"] for run in golden["runs"]}
    for prompt, greedy in zip(golden["prompts"], golden["greedy"], strict=True):
        sequence, rounds = _roll(loaded, None, prompts[prompt], golden["max_new_tokens"], Off())
        assert sequence.reply_ids == greedy
        assert all(result.draft.tokens == () for _, result in rounds)


@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_last_row_of_the_first_prompt(folder):
    loaded = _load(folder)
    golden = loaded.golden
    run = next(run for run in golden["runs"] if run["prompt"] == golden["prompts"][0])
    taps = loaded.drafters[run["drafter"]].taps
    ids = tuple(run["prompt_ids"])
    (read,) = loaded.target.forward([Rows(loaded.target.new_cache(), ids, len(ids) - 1)], taps)
    assert read.taps is not None
    expected = torch.tensor(golden["target_logits_last"]), torch.tensor(golden["tap_rows_last"])
    torch.testing.assert_close((read.logits[0], read.taps[-1]), expected, atol=LOGIT_ATOL, rtol=0)


@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_a_context_that_lived_through_rounds_equals_one_freshly_read(folder):
    """Rejections, and a second turn that keeps a part of the first, leave no trace in what is drafted."""
    loaded = _load(folder)
    run = loaded.golden["runs"][0]
    rejections = 0
    for drafter in loaded.drafters.values():
        sequence, rounds = _roll(
            loaded, drafter, run["prompt_ids"], loaded.golden["max_new_tokens"], Fixed(drafter.block_size)
        )
        rejections += sum(result.verdict.outcome == "corrected" for _, result in rounds)
        context = sequence.context
        assert context is not None
        for length in (context.length, (context.length + 1) // 2, 1):
            context.truncate(length)
            ids, anchor = tuple(sequence.ids[:length]), sequence.ids[length]
            (read,) = loaded.target.forward([Rows(loaded.target.new_cache(), ids, length)], drafter.taps)
            fresh = drafter.new_context()
            drafter.extend(fresh, ids, read.taps)
            lived, anew = (drafter.draft(held, anchor, sequence.law, drafter.block_size) for held in (context, fresh))
            assert lived.tokens == anew.tokens
            assert (lived.confidence_logits or ()) == pytest.approx(anew.confidence_logits or (), rel=0, abs=1e-5)
    assert rejections > 0


class _LaterLayers:
    """The weights of a target without its first ``skipped`` layers, whose embedding of id i is row i of ``rows``."""

    weights_format = "f32"

    def __init__(self, weights: WeightSource, config: TargetConfig, skipped: int, rows: torch.Tensor) -> None:
        self._weights = weights
        self._skipped = skipped
        self._head = "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"
        self._embedding = torch.zeros(config.vocab_size, rows.shape[1])
        self._embedding[: len(rows)] = rows

    def __contains__(self, name: str) -> bool:
        return True

    def tensor(self, name: str) -> torch.Tensor:
        if name == "model.embed_tokens.weight":
            return self._embedding
        if name == "lm_head.weight":
            return self._weights.tensor(self._head)
        start, _, rest = name.removeprefix("model.layers.").partition(".")
        return self._weights.tensor(f"model.layers.{int(start) + self._skipped}.{rest}" if start.isdigit() else name)


@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_layers_after_a_tap_lead_from_its_rows_to_the_target_s_own_logits(folder):
    """A tap one layer off would go unnoticed in use: it costs acceptance and raises nothing."""
    checkpoint, kernels = open_folder(folder / "target"), select("auto", "cpu")
    config, target = checkpoint.config, _load(folder).target
    ids = tuple(_load(folder).golden["runs"][0]["prompt_ids"])[: config.vocab_size]
    taps = tuple(range(-1, config.layers - 1))
    (read,) = target.forward([Rows(target.new_cache(), ids)], taps)
    assert read.taps is not None
    for tap, rows in zip(taps, read.taps.chunk(len(taps), dim=1), strict=True):
        later = replace(
            config,
            layers=config.layers - tap - 1,
            sliding_windows=config.sliding_windows[tap + 1 :],
            tied_head=False,
        )
        rest = TorchTarget(later, _LaterLayers(checkpoint.weights, config, tap + 1, rows), kernels)
        (again,) = rest.forward([Rows(rest.new_cache(), tuple(range(len(ids))))])
        torch.testing.assert_close(again.logits, read.logits, atol=1e-5, rtol=0)
