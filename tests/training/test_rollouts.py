"""What is recorded of rounds is what happened in them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dspark_cli.engine.contracts import Draft, Plan, Sampling, Verdict
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.engine.round import RoundResult
from dspark_cli.events import Round, RoundTimes
from dspark_cli.training import rollouts
from dspark_cli.training.rollouts import RolloutPlan, observe

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"
TEXTS = ("the small cat ", "3,5,7,", "12+30=", "a red bird sings and then the ", "7+8=15;9+9=", "0,4,8,12,")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = EngineOptions(GOLDEN / "target", "t", GOLDEN / "drafter-gated", "d", device="cpu", weight_cache=False)
    opened = Engine.open(options)
    yield opened
    opened.close()


def prompts(engine: Engine, count: int = 1000) -> Iterator[tuple[int, tuple[int, ...]]]:
    return ((number, engine.raw_prompt(TEXTS[number % len(TEXTS)]).ids) for number in range(count))


def test_greedy_rounds_are_those_of_the_engine(engine: Engine) -> None:
    """One reply at a time, so that the order is known; the last rounds of a reply have less room."""
    seen = observe(engine.pair, prompts(engine, 6), RolloutPlan(Sampling(), 10_000, 40, parallel=1), lambda _: None)
    assert seen.prompts == 6
    row = 0
    for _, ids in prompts(engine, 6):
        request = engine.request(engine.raw_prompt("x"), sampling=Sampling(), max_new_tokens=40)
        request = type(request)(**{**vars(request), "prompt_ids": ids})
        for event in engine.generate(request):
            if not isinstance(event, Round) or not event.draft:
                continue
            stops = [slot + 1 for slot, token in enumerate(event.draft) if token in request.stop_ids]
            judged = min([event.verified, *stops])
            confidence = seen.logits[row].sigmoid()[:judged].tolist()
            assert confidence == pytest.approx(event.confidence[:judged], abs=1e-5)  # type: ignore[index]
            assert seen.survived[row, :judged].tolist() == [float(slot < event.accepted) for slot in range(judged)]
            for data in (seen.logits, seen.survived, seen.chance):
                assert data[row, judged:].isnan().all()
            row += 1
    assert row == seen.rounds
    assert torch.equal(seen.chance.nan_to_num(-1), seen.survived.nan_to_num(-1))
    assert 0 < float(seen.survived.nansum()) < float((~seen.survived.isnan()).sum())
    assert seen.survived.isnan().any()


@pytest.mark.parametrize("parallel", [1, 5])
def test_drawn_rounds_survive_as_often_as_their_chance_says(engine: Engine, parallel: int) -> None:
    plan = RolloutPlan(Sampling(temperature=1.0, seed=5), 600, 40, parallel)
    told: list[int] = []
    seen = observe(engine.pair, prompts(engine), plan, told.append)
    assert 600 <= seen.rounds < 600 + parallel
    assert told[-1] == seen.rounds
    assert told == sorted(told)
    for slot in range(seen.logits.shape[1]):
        known = ~seen.survived[:, slot].isnan()
        survived, chance = seen.survived[known, slot], seen.chance[known, slot]
        assert bool(((chance >= 0) & (chance <= 1 + 1e-9)).all())
        # The variance of each outcome around its chance is at most that of a coin of this chance.
        spread = float((chance * (1 - chance)).sum().sqrt()) + 1.0
        assert abs(float(survived.sum() - chance.sum())) < 4 * spread
    assert float(seen.survived[:, 0].nanmean()) > 0.1


def test_the_seed_is_the_plan_s_and_the_prompt_s(engine: Engine) -> None:
    def run(seed: int, parallel: int) -> torch.Tensor:
        plan = RolloutPlan(Sampling(temperature=1.0, seed=seed), 10_000, 12, parallel)
        found = observe(engine.pair, prompts(engine, 4), plan, lambda _: None)
        return found.survived.nan_to_num(-1)

    one = run(1, 1)
    assert torch.equal(one, run(1, 1))
    assert sorted(one.tolist()) == sorted(run(1, 4).tolist())
    assert not torch.equal(one, run(2, 1))


def _result(tokens: tuple[int, ...], planned: int, accepted: int, **more: object) -> RoundResult:
    draft = Draft(tokens, confidence_logits=tuple(float(i) for i in range(len(tokens))), **more)  # type: ignore[arg-type]
    return RoundResult(3, 9, draft, Plan(planned, "fixed"), Verdict(accepted, 1, "corrected"), (1,), RoundTimes())


@pytest.mark.parametrize(
    ("tokens", "planned", "accepted", "expected"),
    [
        ((4, 5, 6, 7), 4, 2, [1, 1, 0, 0]),
        ((4, 5, 6, 7), 4, 4, [1, 1, 1, 1]),
        ((4, 5, 6), 3, 0, [0, 0, 0, math.nan]),
        ((4, 5, 6, 7), 2, 2, [1, 1, math.nan, math.nan]),
        # 8 ends replies. What stands after it is not judged, whether it was accepted or not.
        ((4, 8, 6, 7), 4, 2, [1, 1, math.nan, math.nan]),
        ((4, 8, 6, 7), 4, 1, [1, 0, math.nan, math.nan]),
        ((8, 8, 6, 7), 4, 0, [0, math.nan, math.nan, math.nan]),
    ],
)
def test_which_slots_count(tokens: tuple[int, ...], planned: int, accepted: int, expected: list[float]) -> None:
    logits, survived, chance = rollouts._row(_result(tokens, planned, accepted), 4, {8})
    assert survived.tolist() == pytest.approx(expected, nan_ok=True)
    assert chance.tolist() == pytest.approx(expected, nan_ok=True)
    known = sum(not math.isnan(value) for value in expected)
    assert logits.tolist() == pytest.approx([*range(known), *[math.nan] * (4 - known)], nan_ok=True)


def test_the_chance_of_a_drawn_prefix_by_hand() -> None:
    """Σ min(p, q) of the slot, after min(1, p/q) of each token before it."""
    q = (torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.2, 0.2, 0.6]))
    p = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.6, 0.3], [1.0, 0.0, 0.0]])
    result = _result((0, 2), 2, 0, q=q)
    result = type(result)(**{**vars(result), "rows": p})
    _, _, chance = rollouts._row(result, 2, set())
    assert chance.tolist() == pytest.approx([0.2 + 0.5, (0.2 / 0.5) * (0.1 + 0.2 + 0.3)])
