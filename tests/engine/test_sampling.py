"""Penalties, filters and draws, against transformers' own processors and a plain reference."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from dspark_cli.engine import token_filters
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw, check_sampling
from dspark_cli.errors import DsparkError, UsageError
from tests.distribution.reference import next_token_law, penalised

DTYPES = (torch.float32, torch.float64)
# Coarse values, so that ties are common; −inf as a reduced draft vocabulary leaves it.
LOGIT = st.one_of(st.integers(-12, 12).map(lambda n: n / 4), st.just(-math.inf), st.floats(-20, 20, width=32))
ROW = st.lists(LOGIT, min_size=2, max_size=24).filter(lambda row: max(row) > -math.inf)
FILTERS = {
    "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.6]),
    "top_k": st.sampled_from([0, 1, 2, 3, 7, 24, 1000]),
    "top_p": st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 1 - 1e-9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 5.0]),
}


@pytest.fixture(scope="module")
def transformers_model():
    """A model small enough to be nothing but the owner of transformers' processor pipeline."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = LlamaConfig(
        vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    return LlamaForCausalLM(tiny)


def transformers_law(model, sampling: Sampling, rows: Tensor, context: list[int]) -> Tensor:
    """The probabilities that ``generate`` would draw from, by the pipeline that it builds itself."""
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=True, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        min_p=sampling.min_p, repetition_penalty=sampling.repetition_penalty,
    )  # fmt: skip
    config._eos_token_tensor = None
    processors = model._get_logits_processor(config, input_ids_seq_length=len(context))
    ids = torch.tensor([context] * rows.shape[0], dtype=torch.int64)
    return processors(ids, rows.clone()).softmax(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@given(row=ROW, data=st.data())
def test_filters_are_those_of_transformers(transformers_model, dtype, row, data):
    sampling = Sampling(**{name: data.draw(values, name) for name, values in FILTERS.items()})
    prompt = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, max_size=8))
    rows = torch.tensor([row], dtype=dtype)
    ours = TokenLaw(sampling, prompt, len(row)).probabilities(rows, ())
    theirs = transformers_law(transformers_model, sampling, rows, prompt)
    assert torch.equal(ours > 0, theirs > 0), (ours, theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(FILTERS))
def test_each_filter_alone_is_that_of_transformers(transformers_model, dtype, name):
    rows = torch.randn(7, 123, dtype=dtype) * 3
    value = {"temperature": 0.6, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.4}[name]
    sampling = Sampling(**{"temperature": 1.0, name: value})
    context = [3, 122, 3, 60]
    ours = torch.cat([TokenLaw(sampling, context, 123).probabilities(row[None], ()) for row in rows])
    theirs = transformers_law(transformers_model, sampling, rows, context)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs)
    unfiltered = TokenLaw(Sampling(temperature=1.0), context, 123).probabilities(rows, (0,) * 6)
    assert not torch.allclose(ours, unfiltered, atol=1e-3), "the filter does nothing"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("scale", [0.01, 2.0, 6.0])
def test_top_p_over_a_large_vocabulary(transformers_model, dtype, top_p, scale):
    """Wide, steep and flat rows: where the largest candidates decide and where only a full sort can."""
    rows = torch.randn(4, 20011, dtype=dtype) * scale
    rows[1] = (rows[1] * 2).round() / 2  # ties everywhere
    rows[2, 100:] = -math.inf
    for sampling in (Sampling(temperature=1.0, top_p=top_p), Sampling(temperature=1.0, top_p=top_p, top_k=40)):
        ours = TokenLaw(sampling, (), 20011).probabilities(rows, (0,) * 3)
        theirs = transformers_law(transformers_model, sampling, rows, [0])
        assert torch.equal(ours > 0, theirs > 0)
        torch.testing.assert_close(ours, theirs)


def test_top_p_does_not_sort_where_few_tokens_decide(monkeypatch):
    rows = torch.randn(4, 49152) * 6
    law = TokenLaw(Sampling(temperature=1.0, top_p=0.9), (), 49152)
    expected = law.probabilities(rows, (0,) * 3)

    sort = Tensor.sort

    def no_large_sort(self, *args, **kwargs):
        assert self.shape[-1] < 1000, "the whole vocabulary was sorted"
        return sort(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "sort", no_large_sort)
    assert torch.equal(
        TokenLaw(Sampling(temperature=1.0, top_p=0.9), (), 49152).probabilities(rows, (0,) * 3), expected
    )
    with pytest.raises(AssertionError, match="sorted"):
        TokenLaw(Sampling(temperature=1.0, top_p=0.9), (), 49152).probabilities(rows * 0.01, (0,) * 3)


@given(row=ROW, data=st.data(), candidates=st.integers(1, 9))
def test_the_number_of_candidates_changes_nothing(row, data, candidates):
    sampling = Sampling(temperature=1.0, top_p=data.draw(FILTERS["top_p"]), top_k=data.draw(FILTERS["top_k"]))
    rows = torch.tensor([row])
    expected = TokenLaw(sampling, (), len(row)).probabilities(rows, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_filters, "TOP_P_CANDIDATES", candidates)
        assert torch.equal(TokenLaw(sampling, (), len(row)).probabilities(rows, ()), expected)


PENALTIES = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 3]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.1]),
)
IDS = st.lists(st.integers(0, 7), max_size=7)


@given(sampling=PENALTIES, prompt=IDS, reply=IDS, drafted=IDS, cut=st.integers(0, 7), seed=st.integers(0, 99))
def test_row_i_sees_prompt_reply_and_the_tokens_drafted_before_it(sampling, prompt, reply, drafted, cut, seed):
    rows = torch.randn(len(drafted) + 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    before = rows.clone()
    law = TokenLaw(sampling, prompt, 8)
    law.commit(reply[:cut])
    law.commit(reply[cut:])
    logits, chances = law.logits(rows, drafted), law.probabilities(rows, drafted)
    assert torch.equal(rows, before), "the target's logits were changed"
    for i, row in enumerate(rows.tolist()):
        seen = [*reply, *drafted[:i]]
        expected = next_token_law(sampling, row, prompt, seen)
        assert logits[i].tolist() == pytest.approx(penalised(sampling, row, prompt, seen), abs=1e-13)
        assert chances[i].tolist() == pytest.approx(expected, abs=1e-13)
        # Alone, and with the drafted tokens committed, the row weighs the same to the last bit.
        assert torch.equal(law.logits(rows[i : i + 1], drafted, i)[0], logits[i])
        committed = TokenLaw(sampling, prompt, 8)
        committed.commit(seen)
        assert torch.equal(committed.logits(rows[i : i + 1], ())[0], logits[i])


def test_the_prompt_counts_for_repetition_only():
    rows = torch.ones(1, 4, dtype=torch.float64)
    counted = Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert TokenLaw(counted, [1, 1], 4).logits(rows, ()).tolist() == [[1, 1, 1, 1]]
    repeated = Sampling(temperature=1.0, repetition_penalty=2.0)
    assert TokenLaw(repeated, [1, 1], 4).logits(rows, ()).tolist() == [[1, 0.5, 1, 1]]


def test_ids_beyond_the_head_are_no_one_to_penalise():
    sampling = Sampling(temperature=1.0, repetition_penalty=2.0, frequency_penalty=1.0)
    law = TokenLaw(sampling, [9, 1], 4)
    law.commit([7, 2])
    assert law.logits(torch.ones(2, 4), [8]).tolist() == [[1, 0.5, -0.5, 1]] * 2


def test_nothing_is_done_where_nothing_is_asked():
    rows = torch.randn(3, 63)
    law = TokenLaw(Sampling(temperature=1.0), [1, 2], 63)
    law.commit([5])
    assert law.logits(rows, [4, 4]) is rows
    assert torch.equal(law.probabilities(rows, [4, 4]), rows.softmax(-1))


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.float16, torch.float32)],
)
def test_dtype_of_the_law(given_dtype, expected):
    sampling = Sampling(temperature=0.7, top_k=3, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1)
    law = TokenLaw(sampling, [1], 8)
    law.commit([2])
    assert law.probabilities(torch.randn(2, 8).to(given_dtype), [3]).dtype == expected


def test_a_row_without_its_drafted_tokens_is_refused():
    with pytest.raises(ValueError, match="3 rows"):
        TokenLaw(Sampling(temperature=1.0), (), 4).probabilities(torch.zeros(3, 4), [1])


def test_greedy_is_the_largest_penalised_logit():
    rows = torch.tensor([[1.0, 3.0, 2.9, 0.0], [1.0, 3.0, 2.9, 0.0]])
    assert TokenLaw(Sampling(), [1], 4).greedy_tokens(rows, [1]) == [1, 1]
    assert TokenLaw(Sampling(presence_penalty=0.2), [1], 4).greedy_tokens(rows, [1]) == [1, 2]
    assert TokenLaw(Sampling(repetition_penalty=1.2), [1], 4).greedy_tokens(rows, [1]) == [2, 2]
    with pytest.raises(ValueError, match="greedy"):
        TokenLaw(Sampling(), [1], 4).probabilities(rows, [1])


def test_numbers_that_are_none_are_said():
    rows = torch.tensor([[0.0, math.nan, 1.0]])
    with pytest.raises(DsparkError, match="usable probabilities"):
        TokenLaw(Sampling(), (), 3).greedy_tokens(rows, ())
    for bad in ([0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(DsparkError, match="usable probabilities"):
            SeededStream(0).categorical(torch.tensor(bad))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", 1e-30),
        ("top_k", -1), ("top_p", 1.1), ("top_p", -0.1), ("top_p", math.nan), ("min_p", 2.0), ("min_p", -0.5),
        ("repetition_penalty", 0.0), ("repetition_penalty", -1.0), ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
    ],
)  # fmt: skip
def test_values_without_a_meaning_are_refused(name, value):
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        check_sampling(Sampling(**{name: value}))


def test_extreme_temperatures_stay_finite():
    rows = torch.tensor([[900.0, 899.0, -math.inf, -900.0]])
    cold = TokenLaw(Sampling(temperature=1e-20), (), 4).probabilities(rows, ())
    assert cold.tolist() == [[1, 0, 0, 0]]
    hot = TokenLaw(Sampling(temperature=1e20), (), 4).probabilities(rows, ())
    assert hot.tolist() == [pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])]


# Drafting


@pytest.mark.parametrize("detail", [0, 1])
def test_the_draft_is_drawn_from_the_same_law(detail):
    sampling = Sampling(temperature=0.8, top_k=3, top_p=0.9, frequency_penalty=0.5, repetition_penalty=1.2)
    token_law = TokenLaw(sampling, [1, 5], 8)
    token_law.commit([2, 5])
    reply = ReplyLaw(token_law, SeededStream(3), detail)
    logits = torch.randn(8, dtype=torch.float64)
    token, q, chance = reply.choose(logits, [5, 6])
    assert q is not None
    assert q.tolist() == pytest.approx(next_token_law(sampling, logits.tolist(), [1, 5], [2, 5, 5, 6]), abs=1e-14)
    assert q[token] > 0
    assert chance == (pytest.approx(float(q[token])) if detail else None)


def test_a_greedy_draft_is_certain():
    logits = torch.tensor([0.0, 2.0, 1.9])
    assert ReplyLaw(TokenLaw(Sampling(), (), 3), SeededStream(0), 0).choose(logits, []) == (1, None, None)
    token, q, chance = ReplyLaw(TokenLaw(Sampling(presence_penalty=1), (), 3), SeededStream(0)).choose(logits, [1])
    assert (token, q) == (2, None)
    assert chance == pytest.approx(math.exp(1.9) / (1 + math.exp(1.0) + math.exp(1.9)))


# Chance


def test_a_seed_draws_the_same_everywhere():
    stream = SeededStream(2024)
    assert [stream._unit() for _ in range(3)] == [0.7539532404108791, 0.6536530412806927, 0.8305111850799092]
    assert SeededStream(0)._unit() == 0.011546754286331562
    assert SeededStream(-1)._unit() == SeededStream(2**128 - 1)._unit() == 0.4268615279451663


def test_streams_do_not_disturb_each_other():
    alone = [[SeededStream(seed)._unit() for _ in range(1)] for seed in (1, 2)]
    one, two = SeededStream(1), SeededStream(2)
    torch.rand(5), np.random.default_rng(0).random()
    drawn = [(one._unit(), two._unit()) for _ in range(20)]
    again, other = SeededStream(1), SeededStream(2)
    assert [a for a, _ in drawn] == [again._unit() for _ in range(20)]
    assert [b for _, b in drawn] == [other._unit() for _ in range(20)]
    assert drawn[0] == (alone[0][0], alone[1][0])
    assert drawn[0][0] != drawn[0][1]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-45, 1e-30, 1e-8, 0.1, 0.3, 1.0]), min_size=1, max_size=40),
    unit=st.sampled_from([0.0, 2.0**-53, 0.25, 0.5, 1 - 2.0**-24, 1 - 2.0**-53]),
    dtype=st.sampled_from(DTYPES),
)
def test_a_token_of_probability_zero_is_never_drawn(weights, unit, dtype):
    probabilities = torch.tensor(weights, dtype=dtype)
    assume(float(probabilities.sum()) > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeededStream, "_unit", lambda self: unit)
        drawn = SeededStream(0).categorical(probabilities)
    assert probabilities[drawn] > 0


def test_draws_follow_their_weights():
    stream = SeededStream(77)
    weights = torch.tensor([0.1, 0.0, 0.4, 0.25, 0.25]) * 3
    counts = Counter(stream.categorical(weights) for _ in range(4000))
    assert set(counts) == {0, 2, 3, 4}
    assert chisquare([counts[i] for i in (0, 2, 3, 4)], [400, 1600, 1000, 1000]).pvalue > 1e-3
    yes = sum(stream.bernoulli(0.3) for _ in range(4000))
    assert chisquare([yes, 4000 - yes], [1200, 2800]).pvalue > 1e-3
    assert all(stream.bernoulli(chance) for chance in (1.0, 1.5) for _ in range(50))
    assert not any(stream.bernoulli(0.0) for _ in range(50))
