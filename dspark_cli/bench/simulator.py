"""Schedules tried on paper: acceptance and step curves of machines that nobody needs to have.

A round is simulated by what its confidences say and by how many drafted tokens would stand if all were verified. Every
schedule meets the same rounds, whatever it did with the ones before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark_cli.engine.contracts import Draft, RoundState
from dspark_cli.engine.scheduler.auto import Auto
from dspark_cli.engine.scheduler.paper import plan_lengths
from dspark_cli.engine.scheduler.sps_curve import SpsCurve

BLOCK_SIZE = 7
ROUNDS = 12_000
COLD_TOKENS = 96
Floats = NDArray[np.float64]

CURVES = {
    "oneDNN": SpsCurve.flat((57, 71, 73, 75, 80, 84, 89, 93), 12, key="oneDNN"),
    "llama.cpp": SpsCurve.flat((17, 29, 40, 50, 63, 71, 84, 96), 3, key="llama.cpp"),
    "GPU-like": SpsCurve.flat(tuple(float(ms) for ms in np.linspace(10, 11.2, 8).round(4)), 1.5, key="GPU-like"),
    "stair": SpsCurve.flat((10,) * 4 + (16,) * 4, 1.5, key="stair"),
    "cliff": SpsCurve.flat((10,) + (16,) * 3 + (16.5,) * 4, 1.5, key="cliff"),
}


@dataclass(frozen=True)
class Text:
    """How well drafts of a kind of text stand: a round's base acceptance is one of ``bases``, with ``weights``.

    ``never``: whatever the confidences say, nothing stands. ``head``: what the confidences are, see :func:`shown_by`.
    """

    name: str
    bases: tuple[float, ...]
    weights: tuple[float, ...]
    never: bool = False
    head: str = "perfect"


TEXTS = (
    Text("chat", (0.35, 0.6, 0.85), (0.35, 0.4, 0.25)),
    Text("code", (0.5, 0.8, 0.95), (0.2, 0.4, 0.4)),
    Text("bimodal", (0.1, 0.97), (0.5, 0.5)),
    Text("bad", (0.2,), (1.0,)),
    Text("chat, AUC .8", (0.35, 0.6, 0.85), (0.35, 0.4, 0.25), head="auc"),
    Text("code, AUC .8", (0.5, 0.8, 0.95), (0.2, 0.4, 0.4), head="auc"),
    Text("chat, too sure", (0.35, 0.6, 0.85), (0.35, 0.4, 0.25), head="sure"),
    Text("chat, overrated", (0.35, 0.6, 0.85), (0.35, 0.4, 0.25), head="overrating"),
    Text("bad, too sure", (0.2,), (1.0,), head="sure"),
    Text("never right", (0.95,), (1.0,), never=True),
)
NOISE = 0.12
LEAST, MOST = 0.02, 0.99
AUC_DISTANCE = 1.190232  # between the two normal laws of a score whose AUC is .8
SURENESS = 2.5  # what a head that is too sure, for good and for bad, multiplies its logits by
OVERRATING = 0.4  # the power to which a head that rates everything too high takes the chance


@dataclass(frozen=True)
class Rounds:
    """Rounds as every schedule meets them.

    ``shown`` [n, γ]: the confidences; with ``headless`` no schedule sees them. ``standing`` [n]: how many drafted
    tokens stand if all are verified. ``drafted`` [n]: how many there are. ``unknown`` [n]: where a recording did not
    tell ``standing`` to its end, so that the rest was drawn from ``shown``. ``certain``: drafts are certain given the
    past, as greedy ones are, so that a schedule may look at the whole draft.
    """

    name: str
    shown: Floats
    standing: NDArray[np.int64]
    drafted: NDArray[np.int64]
    unknown: NDArray[np.bool_]
    certain: bool = False
    headless: bool = False

    def __len__(self) -> int:
        return len(self.standing)

    @property
    def block_size(self) -> int:
        return int(self.shown.shape[1])

    @cached_property
    def drafts(self) -> list[Draft]:
        """The rounds as the engine would hand them to a schedule."""
        tokens = tuple(range(self.block_size))
        drawn: Any = None if self.certain else tokens  # schedules ask whether there is a q, never what it holds
        return [
            Draft(tokens[:count], drawn, None if self.headless else tuple(row[:count]))
            for row, count in zip(self.shown.tolist(), self.drafted.tolist(), strict=True)
        ]

    def part(self, begin: int, end: int) -> Rounds:
        cut = slice(begin, end)
        return replace(
            self,
            shown=self.shown[cut],
            standing=self.standing[cut],
            drafted=self.drafted[cut],
            unknown=self.unknown[cut],
        )


def synthetic(text: Text, rounds: int = ROUNDS, seed: int = 0, block_size: int = BLOCK_SIZE) -> Rounds:
    """Rounds of a kind of text: slot noise around a round's base, acceptance drawn from what comes of it."""
    draws = np.random.default_rng(seed)
    base = draws.choice(np.array(text.bases), size=(rounds, 1), p=text.weights)
    chance = np.clip(base + NOISE * draws.standard_normal((rounds, block_size)), LEAST, MOST)
    stands = draws.random((rounds, block_size)) < (0.0 if text.never else chance)
    shown = shown_by(text.head, chance, stands, draws)
    standing = np.cumprod(stands, axis=1).sum(axis=1)
    return Rounds(text.name, shown, standing, np.full(rounds, block_size), np.zeros(rounds, np.bool_))


def shown_by(head: str, chance: Floats, stands: NDArray[np.bool_], draws: np.random.Generator) -> Floats:
    """Confidences of a head for slots that stand with ``chance``.

    ``perfect`` shows the chance itself, ``overrating`` a higher one, ``sure`` one with its logits stretched. ``auc``
    knows only a noisy score of what will be, whose AUC is .8, and the share that stands: calibrated, but neither sharp
    nor aware of the round.
    """
    if head == "perfect":
        return chance
    if head == "overrating":
        return chance**OVERRATING
    if head == "sure":
        odds = (chance / (1.0 - chance)) ** SURENESS
        return np.clip(odds / (1.0 + odds), LEAST, MOST)
    score = AUC_DISTANCE * stands + draws.standard_normal(chance.shape)
    share = stands.mean()
    odds = share / (1.0 - share) * np.exp(AUC_DISTANCE * score - AUC_DISTANCE**2 / 2.0)
    return np.asarray(np.clip(odds / (1.0 + odds), 0.001, 0.999))


@dataclass
class Outcome:
    """What a schedule came to over some rounds. ``speed`` is against plain decoding at the same curve."""

    schedule: str
    tokens: int
    ms: float
    plain_ms: float
    rounds: int
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        return self.tokens * self.plain_ms / self.ms

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "speed": self.speed}


def at_lengths(name: str, rounds: Rounds, curve: SpsCurve, lengths: NDArray[np.int64], drafted: bool) -> Outcome:
    """The outcome where round i verifies ``lengths[i]`` drafted tokens, or all there are."""
    lengths = np.minimum(lengths, rounds.drafted)
    times = np.array(curve.steps_ms(1 + rounds.block_size))
    accepted = np.minimum(rounds.standing, lengths)
    rejected = int((accepted < lengths).sum())
    ms = float(times[lengths].sum()) + len(rounds) * curve.draft_ms * drafted + rejected * curve.cut_back_ms
    stood = int(accepted.sum())
    plain, count = float(times[0]), len(rounds)
    return Outcome(name, count + stood, ms, plain, count, count * drafted, int(lengths.sum()), stood)


def plain(rounds: Rounds, curve: SpsCurve) -> Outcome:
    return at_lengths("plain", rounds, curve, np.zeros(len(rounds), np.int64), drafted=False)


def fixed(length: int, rounds: Rounds, curve: SpsCurve) -> Outcome:
    return at_lengths(f"fixed:{length}", rounds, curve, np.full(len(rounds), length, np.int64), drafted=True)


def best_fixed(rounds: Rounds, curve: SpsCurve) -> Outcome:
    """The fixed length that was best, plain decoding among them: known only in hindsight."""
    tried = [plain(rounds, curve), *(fixed(length, rounds, curve) for length in range(1, rounds.block_size + 1))]
    return max(tried, key=lambda outcome: outcome.speed)


def paper(rounds: Rounds, curve: SpsCurve) -> Outcome:
    """Algorithm 1."""
    survivals = np.cumprod(rounds.shown, axis=1).tolist()
    lengths = np.array([plan_lengths((row,), curve).lengths[0] for row in survivals], np.int64)
    return at_lengths("paper", rounds, curve, lengths, drafted=True)


def auto(rounds: Rounds, curve: SpsCurve, schedule: Auto | None = None, most_tokens: int | None = None) -> Outcome:
    """The schedule ``auto``; ``most_tokens`` ends the run where a reply of that many would end.

    ``schedule``: one that has seen rounds, or believes in another curve than the one that is charged here.
    """
    schedule = schedule or Auto(curve, rounds.block_size)
    times, cut_back = curve.steps_ms(1 + rounds.block_size), curve.cut_back_ms
    state = RoundState(rounds.block_size, 0, rounds.block_size, "token-limit")
    out = Outcome("auto", 0, 0.0, times[0], 0)
    reasons = out.reasons
    for draft, standing in zip(rounds.drafts, rounds.standing.tolist(), strict=True):
        intent = schedule.begin(state)
        length, reason, ms = 0, intent.reason, 0.0
        if intent.slots and not draft.tokens:
            reason, ms = "no-match", curve.draft_ms
            out.drafted += 1
        elif intent.slots:
            plan = schedule.plan(state, draft)
            length, reason, ms = plan.planned, plan.reason, curve.draft_ms
            out.drafted += 1
        accepted = min(length, standing)
        ms += times[length] + cut_back * (accepted < length)
        schedule.observe([length], [accepted], 1 + accepted, ms)
        out.rounds += 1
        out.tokens += 1 + accepted
        out.ms += ms
        out.verified += length
        out.accepted += accepted
        reasons[reason] = reasons.get(reason, 0) + 1
        if most_tokens is not None and out.tokens >= most_tokens:
            break
    return out


def cold_replies(rounds: Rounds, curve: SpsCurve, tokens: int = COLD_TOKENS, replies: int = 100) -> list[Outcome]:
    """Replies of ``tokens`` tokens, each by a schedule that has never seen a round."""
    apart = max(len(rounds) // replies, 1)
    parts = [rounds.part(begin, begin + tokens) for begin in range(0, len(rounds) - tokens, apart)]
    return [auto(part, curve, most_tokens=tokens) for part in parts[:replies]]


# Reading the weights bounds a step up to about a hundred rows, arithmetic beyond.
SHARED_CURVE = SpsCurve.flat([10.0 * (1.0 + (rows / 96) ** 2) ** 0.5 for rows in range(1, 1025)], 1.5, key="shared")
REPLIES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Parallel:
    """What ``auto`` came to with several replies in one step."""

    replies: int
    verified_length: float
    speed: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def parallel(rounds: Rounds, curve: SpsCurve, replies: int) -> Parallel:
    """``auto`` with ``replies`` replies at once, all of one kind of text, for as long as the rounds last.

    The mean verified length counts steps without a draft as 0. The speed is against as many replies without drafts.
    """
    schedule = Auto(curve, rounds.block_size)
    states = [RoundState(rounds.block_size, 0, rounds.block_size, "token-limit")] * replies
    tokens, ms, verified, steps = 0, 0.0, 0, 0
    standing = rounds.standing.tolist()
    times = curve.steps_ms(replies * (1 + rounds.block_size))
    for begin in range(0, len(rounds) - replies + 1, replies):
        lengths, took = [0] * replies, 0.0
        if schedule.begin_step(states)[0].slots:
            plans = schedule.plan_step(states, rounds.drafts[begin : begin + replies])
            lengths, took = [plan.planned for plan in plans], curve.draft_ms
        accepted = [min(pair) for pair in zip(lengths, standing[begin : begin + replies], strict=True)]
        rejected = sum(a < v for a, v in zip(accepted, lengths, strict=True))
        took += times[replies + sum(lengths) - 1] + rejected * curve.cut_back_ms
        schedule.observe(lengths, accepted, replies + sum(accepted), took)
        tokens, ms, verified, steps = tokens + replies + sum(accepted), ms + took, verified + sum(lengths), steps + 1
    return Parallel(replies, verified / (steps * replies), tokens / ms * times[replies - 1] / replies)


STRATEGIES: dict[str, Callable[[Rounds, SpsCurve], Outcome]] = {
    "plain": plain,
    "best fixed": best_fixed,
    "whole block": lambda rounds, curve: fixed(rounds.block_size, rounds, curve),
    "paper": paper,
    "auto": auto,
}


def compare(rounds: Rounds, curve: SpsCurve) -> dict[str, Outcome]:
    """What each strategy comes to on the same rounds; Algorithm 1 only where there are confidences."""
    return {
        name: strategy(rounds, curve) for name, strategy in STRATEGIES.items() if name != "paper" or not rounds.headless
    }
