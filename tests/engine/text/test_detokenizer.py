from __future__ import annotations

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspark_cli.engine.contracts import TextSink
from dspark_cli.engine.text.detokenizer import Detokenizer
from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import UsageError
from tests.engine.text.vocabularies import demo, sentencepiece


def stream(known: Tokenizer, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], str, int]:
    """What each token showed, all of it with the rest, and how many tokens were taken."""
    sink = Detokenizer(known, stops)
    shown = []
    for taken, token in enumerate(ids, 1):
        complete = sink.push(token)
        shown.append(sink.take())
        if complete:
            return shown, "".join(shown) + sink.finish(), taken
    return shown, "".join(shown) + sink.finish(), len(ids)


def test_it_is_a_text_sink() -> None:
    assert isinstance(Detokenizer(demo(), ()), TextSink)


@given(st.lists(st.integers(0, 49151), max_size=30))
def test_the_whole_equals_decoding_the_whole(ids: list[int]) -> None:
    assert stream(demo(), ids)[1] == demo().decode(ids)


@given(st.text(max_size=40), st.lists(st.integers(0, sentencepiece().vocab_size - 1), max_size=20))
def test_the_whole_equals_decoding_the_whole_in_sentencepiece(text: str, ids: list[int]) -> None:
    for tokens in (sentencepiece().encode(text, special=False), ids):
        assert stream(sentencepiece(), tokens)[1] == sentencepiece().decode(tokens)


@given(st.text(max_size=40))
def test_no_half_character_is_ever_shown(text: str) -> None:
    ids = demo().encode(text, special=False)
    so_far, whole = "", demo().decode(ids)
    for part in stream(demo(), ids)[0]:
        so_far += part
        assert whole.startswith(so_far)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = demo().encode("a🤖b", special=False)
    shown, whole, _ = stream(demo(), ids)
    assert whole == "a🤖b"
    assert [part for part in shown if part] == ["a", "🤖", "b"]
    assert len(shown) > 3


def test_an_unfinished_character_ends_as_a_replacement_character() -> None:
    ids = demo().encode("hi 🤖", special=False)[:-1]
    shown, whole, _ = stream(demo(), ids)
    assert "".join(shown) == "hi "
    assert whole == "hi \ufffd"


def test_special_tokens_and_stop_ids_give_no_text() -> None:
    ids = demo().encode("yes", special=False)
    assert stream(demo(), [1, *ids, 2])[1] == "yes"
    word = demo().encode(" no", special=False)
    sink = Detokenizer(demo(), stop_ids=frozenset(word))
    for token in ids + word:
        sink.push(token)
    assert sink.finish() == "yes"


# Stop strings


def test_a_stop_string_over_several_tokens_is_never_shown_in_part() -> None:
    ids = demo().encode("One, two.\n\nUser: three", special=False)
    shown, whole, taken = stream(demo(), ids, ("\n\nUser:",))
    assert whole == "One, two."
    assert "".join(shown) == "One, two."
    assert demo().decode(ids[:taken]).endswith("User:")


def test_a_beginning_that_does_not_go_on_is_shown_after_all() -> None:
    ids = demo().encode("a\n\nUse it", special=False)
    shown, whole, _ = stream(demo(), ids, ("\n\nUser:",))
    assert whole == "a\n\nUse it"
    assert shown[0] == "a"


def test_a_stop_string_inside_one_token() -> None:
    ids = demo().encode(" wonderful", special=False)
    assert len(ids) == 1
    assert stream(demo(), ids, ("nder",))[1] == " wo"


def test_what_is_held_back_at_the_end_is_given() -> None:
    assert stream(demo(), demo().encode("wait END", special=False), ("ENDING",))[1] == "wait END"


def test_a_stop_string_at_the_very_beginning_leaves_nothing() -> None:
    assert stream(demo(), demo().encode("###", special=False), ("#",))[1] == ""


def test_nothing_may_be_pushed_after_a_stop_string() -> None:
    sink = Detokenizer(demo(), ("b",))
    assert sink.push(demo().encode("abc", special=False)[0])
    assert sink.complete
    with pytest.raises(ValueError, match="already ended"):
        sink.push(5)
    assert sink.take() + sink.finish() == "a"
    assert sink.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        Detokenizer(demo(), ("",))


def _first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first (the longest, if several are at once)."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@st.composite
def _texts_with_stops(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """A text in pieces, and stop strings, of which most stand in the text and many overlap."""
    pieces = draw(st.lists(st.text(alphabet="aab\n", min_size=1, max_size=6), max_size=8))
    text = "".join(pieces) or "a"
    stops = [draw(st.text(alphabet="ab", min_size=1, max_size=3)) + "\n"]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + draw(st.integers(2, 6))])
    return pieces, stops


@settings(max_examples=300)
@given(_texts_with_stops())
@example((["aa", "ab"], ["aab"]))
@example((["bab"], ["b", "ab"]))
@example((["aabaaabaaa\n"], ["aabaaa\n"]))
def test_stops_do_not_depend_on_how_the_text_is_cut(drawn: tuple[list[str], list[str]]) -> None:
    pieces, stops = drawn
    text = "".join(pieces)
    expected, complete = _first_stop(text, stops)
    sink = Detokenizer(demo(), stops)
    shown, ended = "", False
    for piece in pieces:
        for token in demo().encode(piece, special=False):
            ended = ended or sink.push(token)
            shown += sink.take()
            assert expected.startswith(shown)
            if ended:
                break
        if ended:
            break
    assert shown + sink.finish() == expected
    assert ended == complete


@given(st.text(alphabet="ab", max_size=20), st.text(alphabet="ab", min_size=1, max_size=5))
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stop: str) -> None:
    if stop in text:
        return
    sink = Detokenizer(demo(), (stop,))
    for token in demo().encode(text, special=False):
        sink.push(token)
    held = next(size for size in range(len(stop) - 1, -1, -1) if text.endswith(stop[:size]))
    assert sink.take() == text[: len(text) - held]


# The space that sentencepiece puts in front


def test_the_leading_space_goes_only_from_a_text_of_its_own() -> None:
    ids = sentencepiece().encode("hello world", special=False)
    sink = Detokenizer(sentencepiece())
    assert not sink.push(ids[0])
    assert sink.take() == "hello"
    raw = Detokenizer(sentencepiece(), continues=True)
    for token in ids:
        raw.push(token)
    assert raw.finish() == " hello world"


def test_a_special_token_in_front_does_not_keep_the_space() -> None:
    assert stream(sentencepiece(), [1, *sentencepiece().encode("hello", special=False)])[1] == "hello"


def test_a_token_costs_the_same_wherever_it_stands() -> None:
    ids = (demo().encode("The quick brown fox jumps over the lazy dog.\n", special=False) * 800)[:8000]
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def cost(tokens: int) -> int:
        nonlocal calls
        calls = 0
        sink = Detokenizer(demo(), ("\n\nUser:", "</answer>", "\n\n\n"))
        sys.setprofile(count)
        try:
            for token in ids[:tokens]:
                sink.push(token)
                sink.take()
        finally:
            sys.setprofile(None)
        return calls

    cost(800)  # fills the tokenizer's table
    assert cost(8000) < 10.5 * cost(800)
