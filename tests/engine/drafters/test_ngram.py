from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark_cli.engine.contracts import Drafter
from dspark_cli.engine.drafters.ngram import NgramContext, NgramDrafter


class _NoLaw:
    """Prompt lookup draws nothing, so it must never ask."""

    def choose(self, logits: Tensor, drafted: Sequence[int]) -> tuple[int, Tensor | None, float | None]:
        raise AssertionError("an n-gram draft is certain")


def _search(ids: list[int], anchor: int, smallest: int, largest: int, count: int) -> tuple[int, ...]:
    """The rule itself: read the text backwards for the longest ending, then copy what followed."""
    text = [*ids, anchor]
    for size in range(largest, smallest - 1, -1):
        for end in range(len(ids), size - 1, -1):
            if text[end - size : end] == text[len(text) - size :] and len(text) > size:
                for offset in range(count):
                    text.append(text[end + offset])
                return tuple(text[len(ids) + 1 :])
    return ()


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.integers(0, 2), max_size=9)),
        st.tuples(st.just("cut"), st.integers(0, 12)),
    ),
    max_size=12,
)


@given(_steps, st.integers(0, 2), st.integers(1, 3), st.integers(0, 3), st.integers(1, 9))
def test_incremental_index_equals_a_search(steps, anchor, smallest, extra, count):
    drafter = NgramDrafter(block_size=9, min_ngram=smallest, max_ngram=smallest + extra)
    context, ids = drafter.new_context(), []
    for what, value in steps:
        if what == "read":
            drafter.extend(context, value, None)
            ids += value
        else:
            keep = max(0, len(ids) - value)
            context.truncate(keep)
            del ids[keep:]
        assert context.length == len(ids)
        expected = _search(ids, anchor, smallest, smallest + extra, count)
        draft = drafter.draft(context, anchor, _NoLaw(), count)
        assert draft.tokens == expected
        assert context.ids == ids


def test_draft_is_certain_and_bounded():
    drafter: Drafter = NgramDrafter(block_size=3)
    context = drafter.new_context()
    drafter.extend(context, [1, 2, 3, 4, 5, 6, 1], None)
    draft = drafter.draft(context, 2, _NoLaw(), 100)
    assert draft.tokens == (3, 4, 5)
    assert draft.q is None
    assert draft.confidence is None
    assert drafter.draft(context, 2, _NoLaw(), 0).tokens == ()
    assert drafter.draft(context, 9, _NoLaw(), 3).tokens == ()
    assert (drafter.kind, drafter.taps, drafter.has_confidence) == ("ngram", (), False)


def test_longest_match_wins_then_the_latest():
    drafter = NgramDrafter(block_size=1, min_ngram=2, max_ngram=3)
    context = drafter.new_context()
    drafter.extend(context, [7, 1, 2, 50, 1, 2, 60, 8, 1, 2, 70, 7, 1], None)
    assert drafter.draft(context, 2, _NoLaw(), 1).tokens == (50,)  # 7 1 2 stood before
    context.truncate(11)
    drafter.extend(context, [9, 1], None)
    assert drafter.draft(context, 2, _NoLaw(), 1).tokens == (70,)  # of three places of 1 2 the last


def test_a_period_goes_on():
    drafter = NgramDrafter(block_size=7)
    context = drafter.new_context()
    drafter.extend(context, [4, 5, 6, 4, 5], None)
    assert drafter.draft(context, 6, _NoLaw(), 7).tokens == (4, 5, 6, 4, 5, 6, 4)


def test_cutting_back_leaves_nothing_behind():
    context = NgramContext(1, 4)
    for token in [1, 2, 1, 2, 3]:
        context.append(token)
    context.truncate(0)
    assert context.length == 0
    assert context.last_match(1) is None
    assert context._ends == {}
    with pytest.raises(ValueError, match="cannot keep 1"):
        context.truncate(1)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 2)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="min_ngram"):
        NgramDrafter(min_ngram=sizes[0], max_ngram=sizes[1])
    with pytest.raises(ValueError, match="block_size"):
        NgramDrafter(block_size=0)
