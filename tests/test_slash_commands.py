from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.errors import UsageError
from dspark_cli.slash_commands import COMMANDS, NAMES, Command, help_text, read


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("/exit", Command("/exit")),
        (" /EXIT ", Command("/exit")),
        ("/quit", Command("/exit")),
        ("/system", Command("/system")),
        ("/system Be  brief.", Command("/system", "Be  brief.")),
        ("/system Be  brief.\nAlways.", "/system Be  brief.\nAlways."),
        ("/exit\n", Command("/exit")),
        ("/exit\n/reset", "/exit\n/reset"),
        ("/nosuch\ntext", "/nosuch\ntext"),
        ("//a comment\ncode();", "//a comment\ncode();"),
        ("hello", "hello"),
        (" hello ", " hello "),
        ("//exit", "/exit"),
        ("/usr/bin holds what?", "/usr/bin holds what?"),
        ("/exit is how I leave", "/exit is how I leave"),
        ("/help\nme", "/help\nme"),
        ("a /exit", "a /exit"),
        ("/ by itself", "/ by itself"),
    ],
)
def test_lines_are_read_as_they_are_meant(line: str, meant: Command | str) -> None:
    assert read(line) == meant


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("/regn", "/regen"),
        ("/sytem x", "/system"),
        ("/zzzz", "/help"),
        ("/", "/help"),
        (" / ", "/help"),
        ("/help2", "/help"),
    ],
)
def test_an_unknown_command_is_told_with_what_was_meant(line: str, near: str) -> None:
    with pytest.raises(UsageError, match=near):
        read(line)


@given(st.text().filter(lambda text: "\n" not in text))
def test_two_slashes_say_anything_that_begins_with_one(text: str) -> None:
    assert read("//" + text) == "/" + text


def test_the_help_names_every_command() -> None:
    for command in COMMANDS:
        assert command.name in NAMES
        assert f"{command.name} {command.argument}".strip() in help_text()
        assert command.sentence in help_text()
