"""The simulator reproduces known figures; ``auto`` keeps its promises in it, and a broken rule breaks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dspark_cli.bench.simulator import (
    CURVES,
    REPLIES,
    SHARED_CURVE,
    TEXTS,
    Rounds,
    auto,
    best_fixed,
    cold_replies,
    compare,
    fixed,
    paper,
    parallel,
    plain,
    synthetic,
)
from dspark_cli.engine.scheduler.auto import Auto
from dspark_cli.engine.scheduler.outlook import Outlook
from dspark_cli.engine.scheduler.sps_curve import SpsCurve
from dspark_cli.engine.scheduler.worth import Worth

BY_NAME = {text.name: text for text in TEXTS}
ROUNDS = 4_000
_made: dict[tuple[str, int], Rounds] = {}


def rounds_of(name: str, count: int = ROUNDS) -> Rounds:
    if (name, count) not in _made:
        _made[name, count] = synthetic(BY_NAME[name], count, seed=1)
    return _made[name, count]


def regret(name: str, curve: str, count: int = ROUNDS) -> float:
    rounds = rounds_of(name, count)
    return best_fixed(rounds, CURVES[curve]).speed / auto(rounds, CURVES[curve]).speed - 1.0


def worst_cold(name: str, curve: str) -> float:
    """By which share the slowest of some cold replies takes longer than plain decoding."""
    return 1.0 / min(reply.speed for reply in cold_replies(rounds_of(name), CURVES[curve], replies=15)) - 1.0


# Speed against plain decoding over 12,000 rounds as an independent simulation of the same rules found it:
# best fixed length in hindsight, whole block, Algorithm 1, price of time with plain running averages.
FIGURES = {
    ("oneDNN", "chat"): (1.497, 1.477, 1.632, 1.634),
    ("oneDNN", "code"): (2.413, 2.413, 2.499, 2.500),
    ("oneDNN", "bimodal"): (2.023, 2.023, 2.388, 2.390),
    ("oneDNN", "bad"): (1.000, 0.678, 0.868, 0.989),
    ("llama.cpp", "chat"): (1.000, 0.477, 0.942, 0.996),
    ("llama.cpp", "code"): (1.000, 0.769, 1.064, 1.088),
    ("llama.cpp", "bimodal"): (1.000, 0.647, 1.081, 1.121),
    ("llama.cpp", "bad"): (1.000, 0.216, 0.851, 0.988),
    ("GPU-like", "chat"): (2.130, 2.130, 2.182, 2.181),
    ("GPU-like", "code"): (3.521, 3.521, 3.547, 3.550),
    ("GPU-like", "bimodal"): (2.934, 2.934, 3.051, 3.054),
    ("GPU-like", "bad"): (1.059, 0.991, 1.062, 1.062),
    ("stair", "chat"): (1.910, 1.564, 1.910, 2.015),
    ("stair", "code"): (2.566, 2.544, 2.566, 2.843),
    ("stair", "bimodal"): (2.130, 2.130, 2.059, 2.572),
    ("stair", "bad"): (1.092, 0.719, 1.092, 1.092),
    ("cliff", "chat"): (1.488, 1.488, 1.558, 1.549),
    ("cliff", "code"): (2.494, 2.494, 2.557, 2.511),
    ("cliff", "bimodal"): (2.042, 2.042, 2.457, 2.434),
    ("cliff", "bad"): (1.000, 0.698, 0.870, 0.988),
}


@pytest.mark.parametrize(("curve", "text"), FIGURES)
def test_known_figures(curve: str, text: str) -> None:
    """Within the noise of 12,000 rounds the same for the fixed lengths and Algorithm 1; ``auto`` no worse."""
    hindsight, whole, algorithm_1, price = FIGURES[curve, text]
    found = compare(rounds_of(text, 12_000), CURVES[curve])
    assert found["best fixed"].speed == pytest.approx(hindsight, rel=0.025)
    assert found["whole block"].speed == pytest.approx(whole, rel=0.035)
    assert found["paper"].speed == pytest.approx(algorithm_1, rel=0.025)
    assert found["auto"].speed > price * (1.0 - 0.015)
    if curve == "cliff":
        assert found["auto"].speed > 0.995 * found["paper"].speed, "the look-ahead no longer trails Algorithm 1"


# Promises


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("text", BY_NAME)
def test_regret_against_the_best_fixed_length(curve: str, text: str) -> None:
    assert regret(text, curve) < 0.03


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("text", BY_NAME)
def test_never_much_slower_than_plain_decoding(curve: str, text: str) -> None:
    rounds = rounds_of(text)
    assert auto(rounds, CURVES[curve]).speed > 1 / 1.02
    assert auto(rounds, CURVES[curve], most_tokens=1000).speed > 1 / 1.02
    assert worst_cold(text, CURVES[curve].key) < 0.05


def test_texts_that_change_cost_little() -> None:
    """Stretches of good and bad text in one reply, against the better of plain and whole blocks on each stretch."""
    good, bad = rounds_of("code"), rounds_of("never right")
    stretches = [kind.part(i, i + 400) for i in range(0, 2000, 400) for kind in (good, bad)]
    mixed = replace(
        good,
        **{
            name: np.concatenate([getattr(one, name) for one in stretches])
            for name in ("shown", "standing", "drafted", "unknown")
        },
    )
    for curve in CURVES.values():
        found = auto(mixed, curve)
        best = [max(plain(one, curve), fixed(7, one, curve), key=lambda out: out.speed) for one in stretches]
        ideal = sum(one.tokens for one in best) / sum(one.ms for one in best)
        assert found.tokens / found.ms > 0.9 * ideal
        assert found.speed > 1.0


# Each rule broken on purpose


def test_without_looking_ahead_a_stair_is_a_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outlook, "ahead", lambda self, slot, mean, end: [])
    assert regret("bimodal", "stair") > 0.03


def test_with_plain_averages_ahead_stairs_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that began well goes on well: without that the average of good and bad rounds pays for nothing."""
    with_shift = auto(rounds_of("bimodal"), CURVES["stair"]).speed
    monkeypatch.setattr(Outlook, "ahead", lambda self, slot, mean, end: self.mean[slot + 1 : end])
    assert auto(rounds_of("bimodal"), CURVES["stair"]).speed < 0.97 * with_shift


def test_with_predicted_instead_of_realised_value_a_head_that_is_never_right_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Worth.observe

    def predicted(self: Worth, step: object, accepted: int, cost_ms: float) -> None:
        right(self, step, 5, cost_ms)  # type: ignore[arg-type]
        self.stake = 3.0

    monkeypatch.setattr(Worth, "observe", predicted)
    monkeypatch.setattr(Outlook, "trusted", lambda self, shown: shown)
    assert auto(rounds_of("never right"), CURVES["llama.cpp"]).speed < 0.5


def test_a_head_that_overrates_is_believed_less(monkeypatch: pytest.MonkeyPatch) -> None:
    doubted = auto(rounds_of("chat, overrated"), CURVES["oneDNN"]).speed
    monkeypatch.setattr(Outlook, "trusted", lambda self, shown: shown)
    assert auto(rounds_of("chat, overrated"), CURVES["oneDNN"]).speed < 0.98 * doubted


def test_without_a_stake_a_cold_reply_is_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worth, "most_rows", lambda self, step: 99)
    assert worst_cold("never right", "llama.cpp") > 0.05


def test_drafting_always_loses_on_bad_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worth, "begin", lambda self, step, labels: "")
    assert auto(rounds_of("bad"), CURVES["oneDNN"]).speed < 1 / 1.02


def test_at_the_price_of_plain_decoding_too_much_is_verified() -> None:
    rounds, curve = rounds_of("chat"), SpsCurve.flat([10 + 1.5 * row for row in range(8)], 1.0)

    class Frozen(Auto):
        def observe(self, *given: Any) -> None:
            super().observe(*given)
            self.state.tokens, self.state.ms = 1.0, 10.0  # a rate that never moves from 1/T(1)

    right, frozen = auto(rounds, curve), auto(rounds, curve, Frozen(curve, 7))
    assert frozen.verified > 1.2 * right.verified
    assert frozen.speed < 0.995 * right.speed


# The parts


def test_heads_are_what_they_are_called() -> None:
    for name in ("chat, AUC .8", "code, AUC .8"):
        rounds = rounds_of(name)
        stands = rounds.standing > 0
        claims = rounds.shown[:, 0]
        order = claims.argsort().argsort() + 1
        good = int(stands.sum())
        auc = (order[stands].sum() - good * (good + 1) / 2) / (good * (len(rounds) - good))
        assert auc == pytest.approx(0.8, abs=0.02)
        assert claims.mean() == pytest.approx(stands.mean(), abs=0.02)
    sure, honest = rounds_of("bad, too sure"), rounds_of("bad")
    assert (sure.standing == honest.standing).all()
    assert sure.shown.mean() < 0.5 * honest.shown.mean(), "stretched towards the side that it leans to"
    assert rounds_of("never right").standing.max() == 0
    assert rounds_of("never right").shown.mean() > 0.9


def test_the_same_seed_gives_the_same_rounds() -> None:
    one, two, other = (synthetic(TEXTS[0], 50, seed) for seed in (3, 3, 4))
    assert (one.shown == two.shown).all()
    assert (one.standing == two.standing).all()
    assert (one.shown != other.shown).any()


def test_arithmetic_of_a_fixed_length() -> None:
    shown = np.full((3, 2), 0.5)
    rounds = Rounds("three", shown, np.array([0, 1, 2]), np.full(3, 2), np.zeros(3, np.bool_))
    curve = SpsCurve.flat((10.0, 12.0, 15.0), 1.0, 0.5)
    out = fixed(2, rounds, curve)
    assert (out.tokens, out.ms, out.accepted, out.verified) == (6, 3 * 16.0 + 2 * 0.5, 3, 6)
    assert out.speed == pytest.approx(60 / 49)
    assert (plain(rounds, curve).tokens, plain(rounds, curve).ms, plain(rounds, curve).speed) == (3, 30.0, 1.0)
    assert fixed(7, replace(rounds, drafted=np.array([0, 1, 2])), curve).verified == 3


def test_arithmetic_of_many_replies() -> None:
    shown = np.full((4, 7), 0.99)
    rounds = Rounds("four", shown, np.full(4, 7), np.full(4, 7), np.zeros(4, np.bool_))
    curve = SpsCurve.flat([10.0 + row / 100 for row in range(16)], 1.0)
    found = parallel(rounds, curve, 2)
    assert found.verified_length == 7.0
    assert found.speed == pytest.approx(2 * 16 / (2 * (1.0 + 10.15)) * 10.01 / 2)


@pytest.mark.parametrize("strategy", [auto, paper])
def test_no_strategy_knows_what_stands(strategy: Callable[[Rounds, SpsCurve], object]) -> None:
    """With everything standing instead of nothing, the first round is planned alike."""
    rounds = rounds_of("code").part(0, 1)
    all_stand = replace(rounds, standing=np.full(1, 7))
    curve = CURVES["oneDNN"]
    assert strategy(rounds, curve).verified == strategy(all_stand, curve).verified  # type: ignore[attr-defined]


def test_a_certain_draft_gains_on_the_cliff() -> None:
    rounds = rounds_of("chat")
    whole = auto(replace(rounds, certain=True), CURVES["cliff"]).speed
    assert whole > auto(rounds, CURVES["cliff"]).speed


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_without_confidences_it_still_learns_what_pays(curve: SpsCurve) -> None:
    """Copied text that nearly always stands, and text that never does, judged by how often slots stood alone."""
    base = replace(rounds_of("code"), headless=True, certain=True).part(0, 400)
    copied = replace(base, standing=np.where(np.arange(400) % 20 == 0, 0, 7))
    assert best_fixed(copied, curve).speed / auto(copied, curve).speed < 1.06
    nothing = replace(base, standing=np.zeros(400, np.int64))
    assert auto(nothing, curve).speed > 1 / 1.025


def test_more_replies_verify_less_of_each() -> None:
    """On a machine that reads rows for nothing up to some number, the verified length falls as replies grow."""
    found = [parallel(rounds_of("chat"), SHARED_CURVE, replies) for replies in REPLIES]
    lengths = [one.verified_length for one in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 3.0
    assert lengths[-1] < 0.5 * lengths[0]
    assert all(one.speed > 1 / 1.02 for one in found)
