from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.text.reasoning import ReasoningSplitter, split


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "answer"),
    [
        ("<think>\nI wonder.\n</think>\n\nYes.", False, "I wonder.", "Yes."),
        ("I wonder.\n</think>\n\nYes.", True, "I wonder.", "Yes."),
        ("\n<think>a</think>b", False, "a", "b"),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("<think>a\n\nb\n</think>\n    code\n  more\n", False, "a\n\nb", "    code\n  more\n"),
        ("<think>a</think> Yes", False, "a", "Yes"),
        ("<think>\n  - item", False, "  - item", ""),
        ("<think>\nagain\n</think>ok", True, "again", "ok"),
        ("Plain answer.", False, "", "Plain answer."),
        ("  indented", False, "", "  indented"),
        ("\n\n", False, "", "\n\n"),
        ("<thi", False, "", "<thi"),
        ("<thinking>", False, "", "<thinking>"),
        ("Write <think>x</think> so.", False, "", "Write <think>x</think> so."),
        ("<think>a</think>b</think>c<think>d", False, "a", "b</think>c<think>d"),
        ("<think>a </thin b</think>c", False, "a </thin b", "c"),
        ("never closed </thi", True, "never closed </thi", ""),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
def test_whole_replies(text: str, inside: bool, reasoning: str, answer: str) -> None:
    assert split(text, inside) == (reasoning, answer)


_PARTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</thi", "nk>", "\n", " ", "a", "b c", "\n\n", ">"]), max_size=12
)


@given(_PARTS, st.booleans(), st.data())
def test_cutting_makes_no_difference(parts: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    splitter = ReasoningSplitter(inside)
    found = {"reasoning": "", "answer": ""}
    order: list[str] = []
    while text:
        size = data.draw(st.integers(1, min(4, len(text))))
        for channel, part in splitter.feed(text[:size]):
            assert part
            found[channel] += part
            order.append(channel)
        text = text[size:]
    for channel, part in splitter.finish():
        found[channel] += part
        order.append(channel)
    assert (found["reasoning"], found["answer"]) == split("".join(parts), inside)
    assert order == sorted(order, key=["reasoning", "answer"].index)


@given(_PARTS, st.booleans())
def test_nothing_but_tags_and_blanks_is_lost(parts: list[str], inside: bool) -> None:
    text = "".join(parts)
    if not inside and not text.lstrip().startswith("<think>"):
        assert split(text, inside) == ("", text)
        return
    before, _, after = re.sub(r"^(\s*<think>)+", "", text).partition("</think>")
    reasoning, answer = split(text, inside)
    assert (reasoning.split(), answer.split()) == (before.split(), after.split())
    assert reasoning in text
    assert answer in text


@given(st.text())
def test_a_model_that_never_thinks_passes_unchanged(text: str) -> None:
    if not text.lstrip().startswith("<think>"):
        assert split(text) == ("", text)


def test_text_is_shown_as_soon_as_it_can_be_told_apart() -> None:
    splitter = ReasoningSplitter(False)
    assert splitter.feed("<th") == []
    assert splitter.feed("ink>\nWell") == [("reasoning", "Well")]
    assert splitter.feed(", then") == [("reasoning", ", then")]
    assert splitter.feed(".\n</") == [("reasoning", ".")]
    assert splitter.feed("think>\n") == []
    assert splitter.feed("\nYes") == [("answer", "Yes")]
    assert splitter.feed(" <think>") == [("answer", " <think>")]
    assert splitter.finish() == []
