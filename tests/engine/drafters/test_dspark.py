"""The DSpark drafter against a plain double-precision computation of the same formulas, and its life in a loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dspark_kernels import select
from torch import Tensor

from dspark_cli.engine.contracts import Draft, Drafter, Sampling
from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.model_config import Calibration
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from dspark_cli.errors import CheckpointError
from tests.fakes.memory_weights import MemoryWeights
from tests.fakes.random_drafter import drafter_config, plain_block, plain_slot, random_tensors

KERNELS = [select("reference", "cpu"), select("auto", "cpu")]
ATOL = 2e-5

CONFIGS = {
    "vanilla": drafter_config("vanilla"),
    "gated": drafter_config("gated"),
    "rnn": drafter_config("rnn"),
    "none": drafter_config("none", with_markov=False),
    "no confidence head": drafter_config("rnn", confidence=False),
    "neither head": drafter_config("none", confidence=False),
    "confidence without markov": drafter_config("gated", with_markov=False),
    "tap -1": drafter_config("vanilla", taps=(-1, 1, 2)),
    "block 5": drafter_config("rnn", block_size=5),
    "block 1": drafter_config("gated", block_size=1),
    "one layer, odd vocabulary": drafter_config("vanilla", layers=1, vocab=123, taps=(2,)),
}


def _made(config, kernels=KERNELS[-1], **more) -> tuple[DSparkDrafter, dict[str, Tensor]]:
    tensors = random_tensors(config)
    return DSparkDrafter(config, MemoryWeights(tensors), kernels, **more), tensors


def _law(config, sampling=Sampling(), prompt=()) -> ReplyLaw:  # noqa: B008 (frozen)
    return ReplyLaw(TokenLaw(sampling, prompt, config.vocab_size), SeededStream(7))


def _taps(config, rows: int, seed: int = 1) -> Tensor:
    width = len(config.taps) * config.layer.hidden_size
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def _read(drafter, taps: Tensor, *sizes: int):
    """A context that has read ``taps``, in pieces of the given sizes and then the rest."""
    context, first = drafter.new_context(), 0
    for size in (*sizes, len(taps) - sum(sizes)):
        drafter.extend(context, [3] * size, taps[first : first + size])
        first += size
    return context


def _same(left: Draft, right: Draft) -> None:
    assert left.tokens == right.tokens
    assert (left.confidence_logits or ()) == pytest.approx(right.confidence_logits or (), abs=1e-5)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("rows", [0, 1, 20])
def test_draft_equals_the_plain_computation(config, kernels, rows):
    drafter, tensors = _made(config, kernels)
    taps = _taps(config, rows)
    sampling = Sampling(temperature=0.7, top_k=20, seed=7)
    for anchor in (5, 62):
        hidden = plain_block(config, tensors, taps, anchor)
        for law in (_law(config), _law(config, sampling)):
            draft = drafter.draft(_read(drafter, taps), anchor, law, 99)
            assert len(draft.tokens) == config.block_size
            past = [anchor]
            for slot, token in enumerate(draft.tokens):
                logits, confidence = plain_slot(config, tensors, hidden, past)
                if draft.q is None:
                    assert token == int(logits.argmax())
                else:
                    law_of_slot = TokenLaw(sampling, (), config.vocab_size).probabilities(logits[None], past[1:], slot)
                    torch.testing.assert_close(draft.q[slot].double(), law_of_slot[0], atol=ATOL, rtol=0)
                    assert draft.q[slot][token] > 0
                if draft.confidence is not None:
                    assert draft.confidence_logits[slot] == pytest.approx(confidence, abs=ATOL)
                    assert draft.confidence[slot] == pytest.approx(1 / (1 + math.exp(-confidence)), abs=ATOL)
                past.append(token)
            assert (draft.q is None) == law.greedy
            assert (draft.confidence is None) == (not config.confidence_head)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_what_it_says_of_itself(config):
    drafter: Drafter = _made(config)[0]
    assert drafter.kind == ("parallel" if config.head == "none" else "dspark")
    assert drafter.block_size == config.block_size
    assert drafter.taps == config.taps
    assert drafter.has_confidence == config.confidence_head


def test_fewer_slots_draw_the_same_block_shorter():
    config = CONFIGS["rnn"]
    drafter, _ = _made(config)
    context = _read(drafter, _taps(config, 9))
    whole = drafter.draft(context, 4, _law(config), 7)
    for slots in range(7):
        short = drafter.draft(context, 4, _law(config), slots)
        assert short.tokens == whole.tokens[:slots]
        assert (short.confidence_logits or ()) == pytest.approx(whole.confidence_logits[:slots], abs=1e-6)
    assert drafter.draft(context, 4, _law(config), 0) == Draft()


@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn", "none"])
def test_drafting_leaves_the_context_as_it_was(name):
    config = CONFIGS[name]
    drafter, _ = _made(config)
    context = _read(drafter, _taps(config, 9))
    first = drafter.draft(context, 4, _law(config), 7)
    drafter.draft(context, 50, _law(config), 7)
    assert context.length == 9
    assert drafter.draft(context, 4, _law(config), 7) == first


@pytest.mark.parametrize("sizes", [(5, 1, 1), (1,) * 12, (299,)])
def test_the_pieces_in_which_a_context_is_read_do_not_matter(sizes):
    config = CONFIGS["rnn"]
    drafter, _ = _made(config)
    taps = _taps(config, 300)
    whole = drafter.draft(_read(drafter, taps), 4, _law(config), 7)
    _same(drafter.draft(_read(drafter, taps, *sizes), 4, _law(config), 7), whole)


def test_a_context_cut_back_equals_one_freshly_read():
    """A second turn keeps the common prefix; rejections cut back to it again and again."""
    config = CONFIGS["gated"]
    drafter, _ = _made(config)
    prefix, other, new = _taps(config, 31, 1), _taps(config, 40, 2), _taps(config, 3, 3)
    fresh = drafter.draft(_read(drafter, torch.cat((prefix, new))), 4, _law(config), 7)
    context = _read(drafter, prefix)
    for rejected in (40, 7, 1):
        drafter.extend(context, [9] * rejected, other[:rejected])
        assert drafter.draft(context, 4, _law(config), 7) != fresh
        context.truncate(31)
    drafter.extend(context, [9] * 3, new)
    _same(drafter.draft(context, 4, _law(config), 7), fresh)


def test_a_context_sees_the_order_of_its_rows():
    config = CONFIGS["none"]
    drafter, _ = _made(config)
    taps = _taps(config, 12)
    straight = drafter.draft(_read(drafter, taps), 4, _law(config), 7)
    assert (
        drafter.draft(_read(drafter, taps.flip(0)), 4, _law(config), 7).confidence_logits != straight.confidence_logits
    )


def test_confidence_of_a_slot_does_not_see_what_is_drawn_there():
    """Two laws that part at slot 3 agree on the confidences of slots 1 to 3, and not after."""
    config = CONFIGS["vanilla"]
    drafter, _ = _made(config)
    context = _read(drafter, _taps(config, 9))

    class Parting:
        def __init__(self, third: int) -> None:
            self.third = third

        def choose(self, logits, drafted, ids=None):
            return (self.third if len(drafted) == 2 else 11), None, None

    one, two = (drafter.draft(context, 4, Parting(third), 7) for third in (20, 30))
    assert one.tokens != two.tokens
    assert one.confidence_logits[:3] == two.confidence_logits[:3]
    assert one.confidence_logits[3] != two.confidence_logits[3]
    assert one.q_drafted is None


def test_penalties_see_the_tokens_drafted_before():
    config = CONFIGS["none"]
    drafter, tensors = _made(config)
    taps = _taps(config, 9)
    hidden = plain_block(config, tensors, taps, 4)
    drafted = drafter.draft(_read(drafter, taps), 4, _law(config, Sampling(presence_penalty=1e4)), 7).tokens
    assert len(set(drafted)) == 7
    expected: list[int] = []
    for slot in range(7):
        logits = hidden[slot] @ tensors["lm_head.weight"].double().T
        logits[expected] -= 1e4
        expected.append(int(logits.argmax()))
    assert list(drafted) == expected


def test_temperatures_calibrate_each_slot():
    """Greedy and drawn replies each have their own."""
    config = CONFIGS["vanilla"]
    greedy, sampling = (0.5, 1.0, 2.0, 3.0, 0.7, 1.1, 9.0), (2.0, 0.3, 1.0, 1.5, 1.5, 1.5, 1.5)
    drafter, _ = _made(config, calibration=Calibration(greedy, sampling, "here"))
    plain = _made(config)[0]
    for law, temperatures in (
        (_law(config), greedy),
        (_law(config, Sampling(temperature=0.7, top_k=1)), sampling),
    ):
        draft = drafter.draft(_read(drafter, _taps(config, 9)), 4, law, 5)
        assert draft.confidence == pytest.approx(
            [1 / (1 + math.exp(-x / t)) for x, t in zip(draft.confidence_logits, temperatures, strict=False)]
        )
        bare = plain.draft(_read(drafter, _taps(config, 9)), 4, law, 5)
        assert bare.confidence_logits == draft.confidence_logits
        assert bare.confidence == pytest.approx([1 / (1 + math.exp(-x)) for x in draft.confidence_logits])


@pytest.mark.parametrize("temperatures", [(1.0,) * 6, (1.0,) * 6 + (0.0,), (1.0,) * 6 + (math.nan,), (math.inf,) * 7])
@pytest.mark.parametrize("law", ["greedy", "sampling"])
def test_impossible_temperatures_are_refused(temperatures, law):
    with pytest.raises(CheckpointError, match="calibration"):
        _made(CONFIGS["vanilla"], calibration=Calibration(**{law: temperatures}))


def test_the_target_s_embedding_and_head_serve_a_file_without_its_own():
    config = CONFIGS["vanilla"]
    drafter, tensors = _made(config)
    lean = {name: t for name, t in tensors.items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    embed, head = tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    sharing = DSparkDrafter(
        config, MemoryWeights(lean), KERNELS[-1], embed=lambda ids: embed[ids], head=lambda rows: rows @ head.T
    )
    taps = _taps(config, 9)
    whole = drafter.draft(_read(drafter, taps), 4, _law(config), 7)
    _same(sharing.draft(_read(sharing, taps), 4, _law(config), 7), whole)
    # A file with its own does not use the target's.
    own = DSparkDrafter(
        config, MemoryWeights(tensors), KERNELS[-1], embed=lambda ids: -embed[ids], head=lambda rows: -rows @ head.T
    )
    _same(own.draft(_read(own, taps), 4, _law(config), 7), whole)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight"):
        DSparkDrafter(config, MemoryWeights(lean), KERNELS[-1])


@pytest.mark.parametrize("name", random_tensors(CONFIGS["rnn"]))
def test_every_tensor_is_needed_and_checked(name):
    tensors = random_tensors(CONFIGS["rnn"])
    wrong = tensors | {name: torch.zeros(*tensors[name].shape, 2)}
    with pytest.raises(CheckpointError, match=name):
        DSparkDrafter(CONFIGS["rnn"], MemoryWeights(wrong), KERNELS[-1])
    del tensors[name]
    with pytest.raises(CheckpointError, match=name):
        DSparkDrafter(CONFIGS["rnn"], MemoryWeights(tensors), KERNELS[-1])


REDUCED = torch.tensor([1, 2, 5, 11, 30, 31, 40, 55, 62])


def _reduced(name: str) -> tuple[DSparkDrafter, DSparkDrafter, list[int]]:
    """A drafter of nine of the 63 tokens; the same with all tokens; the ids that the first does not draft."""
    whole, tensors = _made(CONFIGS[name])
    rows = {key: tensors[key][REDUCED] for key in ("lm_head.weight", "markov_head.markov_w2.weight") if key in tensors}
    config = replace(CONFIGS[name], draft_vocab_size=len(REDUCED))
    few = DSparkDrafter(config, MemoryWeights(tensors | rows), KERNELS[-1], draft_ids=REDUCED)
    return few, whole, sorted(set(range(63)) - set(REDUCED.tolist()))


class _Masked:
    """The law of a whole vocabulary that gives nothing to ``banned``; any ids handed over are a mistake."""

    def __init__(self, law: ReplyLaw, banned: list[int]) -> None:
        self.law, self.banned = law, banned

    def choose(self, logits, drafted, ids=None):
        assert ids is None
        logits = logits.clone()
        logits[self.banned] = -math.inf
        return self.law.choose(logits, drafted)


@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn", "none"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(repetition_penalty=1.8, presence_penalty=0.5),
        Sampling(temperature=0.8),
        Sampling(temperature=1.3, top_k=4),
        Sampling(temperature=1.3, top_p=0.7, min_p=0.02),
        Sampling(temperature=0.9, top_k=20, frequency_penalty=0.7, repetition_penalty=1.3),
    ],
    ids=str,
)
def test_a_reduced_vocabulary_drafts_as_the_whole_one_without_the_other_tokens(name, sampling):
    few, whole, banned = _reduced(name)
    for anchor in (4, 40, 62):
        taps = _taps(few.config, 9, seed=anchor)
        law, other = (_law(few.config, sampling, prompt=(2, 5, 5, 60)) for _ in range(2))
        draft = few.draft(_read(few, taps), anchor, law, 7)
        expected = whole.draft(_read(whole, taps), anchor, _Masked(other, banned), 7)
        _same(draft, expected)
        assert set(draft.tokens) <= set(REDUCED.tolist())
        assert draft.q_drafted == pytest.approx(expected.q_drafted, abs=ATOL)
        assert (draft.q is None) == (expected.q is None) == law.greedy
        for q, token, theirs in zip(draft.q or (), draft.tokens, expected.q or (), strict=False):
            assert q.shape == (63,)
            assert q[token] > 0
            assert not q[banned].any()
            torch.testing.assert_close(q, theirs, atol=ATOL, rtol=0)


def test_the_target_s_rows_serve_a_reduced_head():
    few, _, _ = _reduced("rnn")
    tensors = random_tensors(CONFIGS["rnn"])
    head = tensors.pop("lm_head.weight")[REDUCED]
    lean = tensors | {"markov_head.markov_w2.weight": tensors["markov_head.markov_w2.weight"][REDUCED]}
    sharing = DSparkDrafter(
        few.config, MemoryWeights(lean), KERNELS[-1], head=lambda rows: rows @ head.T, draft_ids=REDUCED
    )
    taps = _taps(few.config, 9)
    law = _law(few.config)
    _same(sharing.draft(_read(sharing, taps), 4, law, 7), few.draft(_read(few, taps), 4, law, 7))


def test_a_reduced_vocabulary_without_its_ids_is_refused_not_misread():
    with pytest.raises(CheckpointError, match="20 of the target's 63 tokens"):
        _made(replace(CONFIGS["vanilla"], draft_vocab_size=20))
    with pytest.raises(CheckpointError, match="ids of 9"):
        _made(CONFIGS["vanilla"], draft_ids=REDUCED)


def test_rows_without_taps_are_a_mistake_of_the_caller():
    config = CONFIGS["vanilla"]
    drafter, _ = _made(config)
    context = drafter.new_context()
    for taps in (None, _taps(config, 3)):
        with pytest.raises(ValueError, match="2 tokens need as many rows"):
            drafter.extend(context, [1, 2], taps)
    assert context.length == 0
