"""The joint law of the first tokens, by exact enumeration, is the target's own: error below 1e-12."""

from __future__ import annotations

import math
from itertools import product

import pytest

from dspark_cli.engine.contracts import Sampling
from tests.distribution.enumeration import Law, Setup, complete_law, exact_law
from tests.distribution.reference import largest_error
from tests.distribution.setups import EDGES, PROMPT, SAMPLINGS, SCHEDULES, setup
from tests.fakes.scripted_drafter import TableDrafter
from tests.fakes.tiny_dspark import HEADS

EXACT = 1e-12


def assert_exact(one: Setup, tokens: int = 3) -> Law:
    law = exact_law(one, tokens)
    assert math.fsum(law.values()) == pytest.approx(1, abs=EXACT)
    assert largest_error(law, one.truth(tokens)) < EXACT
    return law


@pytest.mark.parametrize(("schedule", "sampling"), product(SCHEDULES, SAMPLINGS))
def test_every_schedule_with_every_sampling(schedule, sampling):
    assert_exact(setup("table", schedule, sampling))


@pytest.mark.parametrize(("head", "sampling"), product(HEADS, SAMPLINGS))
def test_every_head_with_every_sampling(head, sampling):
    assert_exact(setup(head, "threshold:0.45", sampling))


@pytest.mark.parametrize(("head", "schedule"), product(HEADS, [name for name in SCHEDULES if name != "threshold:0.45"]))
def test_every_head_with_every_schedule(head, schedule):
    assert_exact(setup(head, schedule, "all"))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_reduced_draft_vocabulary_with_every_sampling(sampling):
    assert_exact(setup("vanilla-reduced", "threshold:0.45", sampling))


@pytest.mark.parametrize("drafter", ["gated-reduced", "rnn-reduced", "none-reduced", "one-token"])
@pytest.mark.parametrize("sampling", ["top-k", "all"])
def test_every_head_with_a_reduced_draft_vocabulary(drafter, sampling):
    assert_exact(setup(drafter, "fixed:2", sampling))


@pytest.mark.parametrize("schedule", EDGES)
def test_schedules_at_the_edge_of_their_range(schedule):
    assert_exact(setup("table", schedule, "all"))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_prompt_lookup_with_every_sampling(sampling):
    assert_exact(setup("ngram", "fixed:2", sampling))


@pytest.mark.parametrize(
    ("drafter", "schedule"),
    [
        *product(["table-parallel"], ["fixed:1", "threshold:0.45"]),
        *product(["table-no-confidence", "vanilla-no-confidence", "ngram"], ["off", "fixed:1", "fixed:2", "fixed:9"]),
    ],
)
def test_every_drafter_with_every_schedule_that_it_knows(drafter, schedule):
    assert_exact(setup(drafter, schedule, "all"))


@pytest.mark.parametrize("schedule", ["fixed:3", "threshold:0.45"])
def test_longer_blocks(schedule):
    assert_exact(setup(TableDrafter(block_size=3), schedule, "all", max_new_tokens=5))


@pytest.mark.parametrize("drafter", ["table", "ngram"])
def test_blocks_that_the_limit_does_not_shorten(drafter):
    assert_exact(setup(drafter, "fixed:2", "frequency", max_new_tokens=9))


@pytest.mark.parametrize("drafter", ["table", "vanilla", "ngram"])
def test_the_bonus_token_of_a_whole_block(drafter):
    """The first token, a block of two and its bonus token are four."""
    assert_exact(setup(drafter, "fixed:2", "top-k"), 4)


@pytest.mark.parametrize("drafter", ["table", "ngram"])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
def test_the_token_limit_cuts_exactly(drafter, max_new_tokens):
    law = assert_exact(setup(drafter, "fixed:2", "repetition", max_new_tokens=max_new_tokens))
    assert {len(reply) for reply in law} == {max_new_tokens}


@pytest.mark.parametrize("drafter", ["table", "ngram"])
@pytest.mark.parametrize("stop_ids", [{3}, {0, 2}])
@pytest.mark.parametrize("max_new_tokens", [3, 4])
def test_a_stop_id_ends_the_reply_wherever_it_falls(drafter, stop_ids, max_new_tokens):
    one = setup(drafter, "fixed:2", "presence", stop_ids=frozenset(stop_ids), max_new_tokens=max_new_tokens)
    law = assert_exact(one)
    assert {len(reply) for reply in law} == {1, 2, 3}


@pytest.mark.parametrize("room", [1, 2, 3])
def test_the_end_of_the_context_cuts_exactly(room):
    one = setup("table", "fixed:2", "temperature-low", context_length=len(PROMPT) + room)
    law = exact_law(one)
    assert {len(reply) for reply in law} == {room}
    assert largest_error(law, one.truth(room)) < EXACT


@pytest.mark.parametrize("schedule", [*SCHEDULES, *EDGES])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.7, frequency_penalty=0.6)])
@pytest.mark.parametrize("target_seed", range(3))
def test_greedy_is_the_targets_own_choice(schedule, sampling, target_seed):
    one = setup("table", schedule, sampling, target_seed=target_seed, max_new_tokens=12)
    law = assert_exact(one, 12)
    assert len(law) == 1


@pytest.mark.parametrize(("drafter", "schedule"), [("table", "threshold:0.45"), ("ngram", "fixed:2")])
def test_whole_replies_from_start_to_end_event(drafter, schedule):
    """Nothing merged: each turn of chance is a reply of its own, told in events to its end."""
    one = setup(drafter, schedule, Sampling(temperature=0.9, top_k=3, frequency_penalty=0.4), max_new_tokens=3)
    law = complete_law(one)
    assert largest_error(law, one.truth(3)) < EXACT
    assert largest_error(law, exact_law(one)) < EXACT


@pytest.mark.parametrize("drafter", ["table", *HEADS])
def test_the_checks_above_are_not_about_plain_decoding(drafter):
    """Under a threshold each drafter verifies no, one and two tokens, or, without x_{k−1}, at least two of these."""
    one = setup(drafter, "threshold:0.45", "temperature-low")
    exact_law(one)
    widths = {width for block in one.target.forward_widths for width in block} - {len(PROMPT)}
    assert len(widths) >= 2
    assert max(widths) > 1
