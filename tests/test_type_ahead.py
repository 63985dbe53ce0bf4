from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.type_ahead import TypeAhead


@pytest.mark.parametrize(
    ("bursts", "messages", "begun"),
    [
        (["one\n", "two\n"], ["one", "two"], ""),
        (["o", "n", "e\n", "t"], ["one"], "t"),
        (["one\n/exit\n"], ["one\n/exit"], ""),
        (["one\n\nthree"], [], "one\n\nthree"),
        (["\n", "\n\n"], [], ""),
        (["\x1b[200~a\n/exit\n\x1b[201~"], [], "a\n/exit\n"),
        (["see \x1b[200~a\n/exit\x1b[201~ this", "\n"], ["see a\n/exit this"], ""),
        (["\x1b[200~a\nb\x1b[201~\n", "\x1b[200~c\x1b[201~"], ["a\nb"], "c"),
        (["abc\x7f\x7fd\x1b[D\x1bOA\n"], ["ad"], ""),
        (["two words\x17x\x15y\n"], ["y"], ""),
        (["a\x07\tb\x1b\n"], ["a\tb"], ""),
    ],
)
def test_what_was_typed_becomes_messages(bursts: list[str], messages: list[str], begun: str) -> None:
    ahead = TypeAhead(None)
    for burst in bursts:
        ahead.take(burst)
    assert (ahead.messages, ahead.begun, ahead.ended) == (messages, begun, False)


def test_ctrl_d_on_an_empty_line_ends_the_input() -> None:
    ahead = TypeAhead(None)
    ahead.take("a\x04")
    assert not ahead.ended
    ahead.take("\n\x04")
    assert (ahead.messages, ahead.ended) == (["a"], True)


@given(st.text(st.characters(blacklist_characters="\x1b")))
def test_a_paste_in_brackets_is_never_changed_nor_split(text: str) -> None:
    ahead = TypeAhead(None)
    ahead.take(f"\x1b[200~{text}\x1b[201~\n")
    assert ahead.messages == ([text] if text.strip() else [])
