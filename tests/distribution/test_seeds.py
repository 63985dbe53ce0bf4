"""A seed repeats a reply, and sequences in one round draw what each draws alone."""

from __future__ import annotations

import pytest
import torch

from dspark_cli.engine.round import run_round
from dspark_cli.engine.sampling import SeededStream
from tests.distribution.enumeration import Setup
from tests.distribution.setups import setup

PAIRS = [("table", "threshold:0.45"), ("vanilla", "fixed:2"), ("rnn", "threshold:0.45"), ("ngram", "fixed:2")]


def reply(one: Setup, seed: int) -> tuple[int, ...]:
    return one.whole(SeededStream(seed)).output_ids


@pytest.mark.parametrize(("drafter", "schedule"), PAIRS)
def test_a_seed_repeats_a_reply(drafter, schedule):
    one = setup(drafter, schedule, "all", max_new_tokens=40)
    replies = [reply(one, seed) for seed in range(5)]
    torch.manual_seed(12345)  # nobody draws from the global generator
    again = setup(drafter, schedule, "all", max_new_tokens=40)
    assert [reply(again, seed) for seed in range(5)] == replies
    assert len(set(replies)) == 5
    assert {len(ids) for ids in replies} == {40}


@pytest.mark.parametrize(("drafter", "schedule"), PAIRS)
def test_sequences_in_one_round_draw_what_each_draws_alone(drafter, schedule):
    one = setup(drafter, schedule, "all", max_new_tokens=30)
    alone = [reply(one, seed) for seed in (3, 4, 5)]
    together = [one.first_token(SeededStream(seed)) for seed in (3, 4, 5)]
    with torch.inference_mode():
        while running := [sequence for sequence in together if not sequence.finished]:
            # Whoever stands first in the round must not matter.
            run_round(one.target, one.drafter, one.scheduler, running[::-1] if len(running[0].ids) % 2 else running)
    assert [tuple(sequence.reply_ids) for sequence in together] == alone


def test_a_reply_that_starts_later_disturbs_no_one():
    one = setup("table", "fixed:2", "all", max_new_tokens=20)
    alone = [reply(one, seed) for seed in (8, 9)]
    first = one.first_token(SeededStream(8))
    with torch.inference_mode():
        run_round(one.target, one.drafter, one.scheduler, [first])
    second = one.first_token(SeededStream(9))
    with torch.inference_mode():
        while running := [sequence for sequence in (first, second) if not sequence.finished]:
            run_round(one.target, one.drafter, one.scheduler, running)
    assert [tuple(sequence.reply_ids) for sequence in (first, second)] == alone
