"""Each rule of losslessness, broken on purpose, is found by the exact law (and by the property on schedules)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dspark_cli.engine import acceptance
from dspark_cli.engine import round as round_module
from dspark_cli.engine import sampling as sampling_module
from dspark_cli.engine.contracts import Draft, Intent, Plan, RandomStream, RoundState, Sampling, Verdict
from dspark_cli.engine.sampling import ReplyLaw, TokenLaw
from tests.distribution.enumeration import Setup, exact_law
from tests.distribution.reference import largest_error
from tests.distribution.setups import setup
from tests.fakes.scripted_target import RecordingCache

FOUND = 1e-3  # a broken rule shows a billion times more than the 1e-12 of a kept one


def error(one: Setup) -> float:
    return largest_error(exact_law(one), one.truth(3))


def assert_found(one: Setup, breaks: Callable[[pytest.MonkeyPatch], None]) -> None:
    assert error(one) < 1e-12
    with pytest.MonkeyPatch.context() as patch:
        breaks(patch)
        assert error(one) > FOUND


# Acceptance


@pytest.mark.parametrize("drafter", ["table", "ngram", "vanilla"])
def test_a_correction_from_p_instead_of_the_residual(drafter):
    def breaks(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(acceptance, "residual", lambda p, token, q: p)

    assert_found(setup(drafter), breaks)


def test_a_residual_that_only_leaves_out_the_rejected_token():
    certain = acceptance.residual
    assert_found(setup(), lambda patch: patch.setattr(acceptance, "residual", lambda p, x, q: certain(p, x, None)))


def _judge_with(rule: Callable[[float, float], float]) -> Callable[..., Verdict]:
    """``judge_sampled`` with another chance of acceptance."""

    def judge(p: Tensor, drafted: list[int], q: list[Tensor] | None, stops: set[int], stream: RandomStream) -> Verdict:
        for slot, token in enumerate(drafted):
            q_slot = None if q is None else q[slot]
            chance = rule(float(p[slot, token]), 1.0 if q_slot is None else float(q_slot[token]))
            if not stream.bernoulli(chance):
                left = acceptance.residual(p[slot], token, q_slot)
                return Verdict(slot, stream.categorical(left), "corrected")
            if token in stops:
                return Verdict(slot + 1, None, "stop")
        return Verdict(len(drafted), stream.categorical(p[len(drafted)]), "bonus")

    return judge


@pytest.mark.parametrize("drafter", ["table", "ngram"])
@pytest.mark.parametrize(
    "rule", [lambda p, q: 1.0, lambda p, q: p, lambda p, q: float(p >= q), lambda p, q: min(1.0, p / q + 0.02)]
)
def test_another_ratio(drafter, rule):
    if drafter == "ngram" and rule(0.3, 1.0) == 0.3:
        rule = lambda p, q: p * p  # noqa: E731 (for a certain draft, p is the right ratio)
    assert_found(setup(drafter), lambda patch: patch.setattr(round_module, "judge_sampled", _judge_with(rule)))


def test_the_judge_of_these_tests_is_right_with_the_right_ratio(monkeypatch):
    monkeypatch.setattr(round_module, "judge_sampled", _judge_with(lambda p, q: p / q))
    assert error(setup()) < 1e-12


def test_a_bonus_from_the_row_before():
    right = acceptance.judge_sampled

    def breaks(patch: pytest.MonkeyPatch) -> None:
        def judge(p, drafted, q, stops, stream):
            return right(torch.cat([p[:-1], p[-2:-1]]) if len(p) > 1 else p, drafted, q, stops, stream)

        patch.setattr(round_module, "judge_sampled", judge)

    # With one verified token a round, the bonus of the first round is the third token.
    assert_found(setup(schedule="fixed:1"), breaks)


# The draft's distribution


def _reports(q_of: Callable[[TokenLaw, Tensor, list[int]], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """The draft is drawn from its law, but another q is handed to the ratio test."""
    right = ReplyLaw.choose

    def choose(self: ReplyLaw, logits: Tensor, drafted: list[int], *more: Tensor) -> tuple[int, Tensor, float | None]:
        token, _, chance = right(self, logits, drafted, *more)
        return token, q_of(self.law, logits, drafted), chance

    return lambda patch: patch.setattr(ReplyLaw, "choose", choose)


@pytest.mark.parametrize("sampling", ["top-k", "top-p", "min-p"])
def test_q_unfiltered_where_the_draft_is_filtered(sampling):
    temperature = setup(sampling=sampling).request.sampling.temperature
    assert_found(setup(sampling=sampling), _reports(lambda law, logits, _: (logits / temperature).softmax(-1)))


def test_q_of_another_temperature():
    assert_found(setup(sampling="temperature-low"), _reports(lambda law, logits, _: logits.softmax(-1)))


@pytest.mark.parametrize("sampling", ["repetition", "presence", "frequency"])
def test_q_without_the_penalties(sampling):
    bare = TokenLaw(Sampling(temperature=0.8), (), 4)
    assert_found(setup(sampling=sampling), _reports(lambda law, logits, _: bare.probabilities(logits[None], ())[0]))


@pytest.mark.parametrize("broken", ["left out", "one off"])
def test_q_of_a_reduced_draft_vocabulary_at_the_wrong_ids(broken):
    """q of the draft ids 0, 1, 2 put there instead of at the target ids 0, 2, 3, or one place too far."""
    right = sampling_module._spread

    def spread(values: Tensor, ids: Tensor, size: int, rest: float) -> Tensor:
        wrong = torch.arange(len(ids)) if broken == "left out" else (ids + 1) % size
        # A token of no probability cannot have been drawn: the ratio test would divide by zero.
        return right(values, wrong, size, rest).clamp_(min=1e-3)

    one = setup("vanilla-reduced", "fixed:2", "temperature-low")
    assert_found(one, lambda patch: patch.setattr(sampling_module, "_spread", spread))


# The target's distribution


@pytest.mark.parametrize("sampling", ["repetition", "presence", "frequency"])
def test_penalties_that_do_not_see_the_drafted_tokens(sampling):
    def rows_alone(self: ReplyLaw, rows: Tensor, drafted: tuple[int, ...]) -> Tensor:
        return torch.cat([self.law.probabilities(row[None], ()) for row in rows])

    # A prompt of one id, so that most drafted tokens are new to the repetition penalty.
    one = setup(sampling=sampling, prompt=(3,))
    assert_found(one, lambda patch: patch.setattr(ReplyLaw, "probabilities", rows_alone))


@pytest.mark.parametrize("sampling", ["repetition", "presence", "frequency"])
def test_penalties_that_forget_the_reply(sampling):
    one = setup(sampling=sampling, prompt=(3,))
    assert_found(one, lambda patch: patch.setattr(ReplyLaw, "commit", lambda self, ids: None))


@pytest.mark.parametrize("sampling", ["presence", "frequency"])
def test_counting_penalties_that_see_the_prompt(sampling):
    right = TokenLaw.__init__

    def init(self: TokenLaw, sampling: Sampling, prompt_ids: tuple[int, ...], vocab_size: int) -> None:
        right(self, sampling, prompt_ids, vocab_size)
        self.commit(prompt_ids)

    assert_found(setup(sampling=sampling), lambda patch: patch.setattr(TokenLaw, "__init__", init))


@pytest.mark.parametrize(
    ("sampling", "without"),
    [
        ("temperature-low", {"temperature": 1.0}), ("top-k", {"top_k": 0}), ("top-p", {"top_p": 1.0}),
        ("min-p", {"min_p": 0.0}), ("repetition", {"repetition_penalty": 1.0}),
        ("presence", {"presence_penalty": 0.0}), ("frequency", {"frequency_penalty": 0.0}),
    ],
)  # fmt: skip
def test_each_setting_left_out(sampling, without):
    """The truth of each named sampling differs from the law without its own setting."""
    right = TokenLaw.__init__

    def init(self: TokenLaw, given: Sampling, prompt_ids: tuple[int, ...], vocab_size: int) -> None:
        right(self, replace(given, **without), prompt_ids, vocab_size)

    assert_found(setup(sampling=sampling), lambda patch: patch.setattr(TokenLaw, "__init__", init))


# The length decision


@dataclass(frozen=True)
class Broken:
    """A schedule whose decision on slot k is ``admits(draft, k)``."""

    admits: Callable[[Draft, int], bool]
    name: str = "broken"

    def begin(self, state: RoundState) -> Intent:
        return Intent(min(state.block_size, state.room))

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        for slot in range(len(draft.tokens)):
            if not self.admits(draft, slot):
                return Plan(slot, "cut-by-gain")
        return Plan(len(draft.tokens), "whole-block")


def _next_confidence(draft: Draft, slot: int) -> bool:
    assert draft.confidence is not None
    return draft.confidence[min(slot + 1, len(draft.tokens) - 1)] >= 0.5


def _whole_survival(draft: Draft, slot: int) -> bool:
    assert draft.confidence is not None
    return torch.tensor(draft.confidence).prod().item() >= 0.25


def _chance_of_the_token(draft: Draft, slot: int) -> bool:
    assert draft.q is not None
    return float(draft.q[slot][draft.tokens[slot]]) >= 0.3


def _token_itself(draft: Draft, slot: int) -> bool:
    return draft.tokens[slot] != 2


BROKEN_SCHEDULES = {
    "looks at the next confidence": _next_confidence,
    "looks at the survival of the whole block": _whole_survival,
    "looks at q(x_k)": _chance_of_the_token,
    "looks at x_k": _token_itself,
}


@pytest.mark.parametrize("rule", BROKEN_SCHEDULES.values(), ids=BROKEN_SCHEDULES)
def test_a_schedule_that_knows_too_much(rule):
    one = setup(schedule="threshold:0.45")
    assert error(one) < 1e-12
    assert error(replace(one, scheduler=Broken(rule))) > FOUND


@pytest.mark.parametrize(
    "rule",
    [
        lambda draft, slot: draft.confidence[slot] >= 0.5,
        lambda draft, slot: slot == 0 or draft.tokens[slot - 1] != 2,
        lambda draft, slot: float(draft.q[slot].max()) >= 0.5,
    ],
)
def test_a_schedule_that_knows_what_it_may(rule):
    """The frame that carries the broken schedules is not what breaks the law."""
    assert error(replace(setup(), scheduler=Broken(rule))) < 1e-12


# The caches


def test_a_cache_that_is_not_cut_back_is_refused(monkeypatch):
    monkeypatch.setattr(RecordingCache, "truncate", lambda self, length: None)
    with pytest.raises(AssertionError):
        error(setup())
