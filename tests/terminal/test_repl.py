"""The line chat on a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.commands.scripted import PROGRAM, ROOT

PROMPT = "> "


class Chat:
    """``dspark chat`` with the scripted engine; ``out`` is where its standard output goes if not to the terminal."""

    def __init__(self, *arguments: str, out: Path | None = None, env: dict[str, str] | None = None) -> None:
        command = [*PROGRAM, "chat", *arguments]
        if out is not None:
            command = ["bash", "-c", f'exec "$@" > {out}', "bash", *command]
        environment = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1", **(env or {})}
        self.terminal = pexpect.spawn(
            command[0], command[1:], cwd=str(ROOT), env=environment, encoding="utf-8", timeout=20, dimensions=(40, 200)
        )

    def until(self, text: str) -> str:
        """What came up to ``text``, without escape codes."""
        self.terminal.expect_exact(text)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.terminal.before)

    def say(self, text: str) -> None:
        self.terminal.send(text)

    def asked(self) -> None:
        """Wait until the prompt stands there and input is read."""
        self.until(PROMPT)
        time.sleep(0.1)

    def end(self) -> int:
        self.terminal.expect(pexpect.EOF)
        self.terminal.close()
        assert self.terminal.exitstatus is not None
        return int(self.terminal.exitstatus)


@pytest.fixture
def chat() -> Iterator[Chat]:
    opened = Chat()
    opened.asked()
    yield opened
    opened.terminal.close(force=True)


def test_ctrl_d_leaves(chat: Chat) -> None:
    chat.say("\x04")
    assert chat.end() == 0


def test_a_chat_remembers_its_turns(chat: Chat) -> None:
    chat.say("one\n")
    chat.until('[{"role": "user", "content": "one"}]')
    chat.asked()
    chat.say("two\n")
    chat.until('{"role": "user", "content": "two"}]')
    assert '{"role": "assistant"' in re.sub(r"\s+", " ", chat.terminal.before)
    chat.asked()
    chat.say("/exit\n")
    assert chat.end() == 0


def test_a_pasted_text_of_many_lines_is_one_message(chat: Chat) -> None:
    chat.say("\x1b[200~first\rsecond\r\rfourth\x1b[201~")
    time.sleep(0.1)
    chat.say("\r")
    chat.until(r'"content": "first\nsecond\n\nfourth"}]')
    chat.asked()


def test_a_paste_without_brackets_is_one_message_too(chat: Chat) -> None:
    chat.say("first\nsecond\n\nfourth\n")
    chat.until(r'"content": "first\nsecond\n\nfourth"}]')
    chat.asked()


def test_a_paste_whose_last_line_is_open_waits_for_enter(chat: Chat) -> None:
    chat.say("first\nsecond")
    chat.until(". second")
    time.sleep(0.1)
    chat.say(" half\n")
    chat.until(r'"content": "first\nsecond half"}]')
    chat.asked()


@pytest.mark.parametrize("end", ["\n", "\n/exit\n"])
def test_a_command_within_a_paste_is_text(chat: Chat, end: str) -> None:
    chat.say("Help of a chat:\n/help\nShows lines" + end)
    chat.until(r'"content": "Help of a chat:\n/help\nShows lines' + (r"\n/exit" if "/exit" in end else "") + '"}]')
    chat.asked()
    chat.say("\x1b[200~/exit\rFrom me\x1b[201~")
    time.sleep(0.1)
    chat.say("\r")
    chat.until(r'"content": "/exit\nFrom me"}]')
    chat.asked()


def test_a_pasted_command_by_itself_is_one(chat: Chat) -> None:
    chat.say("\x1b[200~/exit\r\x1b[201~")
    time.sleep(0.1)
    chat.say("\r")
    assert chat.end() == 0


def test_what_is_typed_during_a_reply_waits_unseen_for_the_next_prompt(chat: Chat) -> None:
    chat.say("slow\n")
    chat.until("word3")
    for key in "tyg":
        chat.say(key)
        time.sleep(0.05)
    chat.say("\x7fped\n")
    time.sleep(0.1)
    chat.say("\x1b[200~pasted\r/exit\r\x1b[201~")
    time.sleep(0.1)
    chat.say("\n")
    time.sleep(0.1)
    chat.say("open")
    time.sleep(0.2)
    chat.terminal.sendintr()
    reply = chat.until("(stopped)")
    assert re.fullmatch(r"\s*(word\d+\s+)+", re.sub(r"\r\n", "", reply)), "nothing typed is in the reply"
    chat.until("> typed")
    chat.until('"content": "typed"}]')
    chat.until("> pasted")
    chat.until(r'"content": "pasted\n/exit\n"}]')
    chat.until("> open")
    time.sleep(0.1)
    chat.say(" line\n")
    chat.until('"content": "open line"}]')
    chat.asked()


def test_several_lines_at_once_during_a_reply_are_one_message(chat: Chat) -> None:
    chat.say("slow\n")
    chat.until("word3")
    chat.say("one\n/exit\nthree\n")
    time.sleep(0.2)
    chat.terminal.sendintr()
    chat.until(r'"content": "one\n/exit\nthree"}]')
    chat.asked()


def test_leaving_by_commands_that_were_typed_ahead(chat: Chat) -> None:
    chat.say("slow\n")
    chat.until("word3")
    chat.say("/stats\n")
    time.sleep(0.15)
    chat.say("/exit\n")
    time.sleep(0.15)
    chat.terminal.sendintr()
    chat.until("tokens/s")
    assert chat.end() == 0


def test_nothing_typed_reaches_the_shell(tmp_path: Path) -> None:
    line = 'exec 3>&1; "$@"; read -t 1 -r rest; echo "left: <$rest>"'
    terminal = pexpect.spawn(
        "bash", ["-c", line, "bash", *PROGRAM, "chat"], cwd=str(ROOT), encoding="utf-8", timeout=20,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    terminal.expect_exact(PROMPT)
    time.sleep(0.1)
    terminal.send("slow\n")
    terminal.expect_exact("word3")
    terminal.send("/exit\n")
    time.sleep(0.15)
    terminal.send("\x1b[200~rm -r x\r\x1b[201~\n")
    time.sleep(0.15)
    terminal.send("half a line")
    time.sleep(0.15)
    terminal.sendintr()
    terminal.expect_exact("left: <>")
    terminal.close(force=True)


def test_ctrl_c_stops_the_reply_and_keeps_what_came(chat: Chat) -> None:
    chat.say("slow\n")
    chat.until("word5 ")
    chat.terminal.sendintr()
    chat.until("(stopped)")
    chat.asked()
    chat.say("go on\n")
    chat.until('"content": "go on"}]')
    assert "word5 " in chat.terminal.before.replace("\r\n", "")
    chat.asked()
    chat.terminal.sendintr()
    chat.until("Ctrl-D or /exit leaves")
    chat.asked()
    chat.say("/exit\n")
    assert chat.end() == 0


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("fail", "the device was unplugged: plug it in again."),
        ("crash", "a bug"),
        ("long", "2000 tokens"),
        ("/regn", "did you mean /regen?"),
    ],
)
def test_an_error_does_not_end_the_chat(chat: Chat, message: str, told: str) -> None:
    chat.say(f"{message}\n")
    assert "Traceback" not in chat.until(told)
    chat.asked()
    chat.say("next\n")
    chat.until('"content": "next"}]')
    kept = chat.terminal.before.replace("\r\n", "")
    assert ("I begin well " in kept) == (message == "fail"), "what came is kept, a message that got nothing is not"
    chat.asked()


def test_regen_answers_the_same_message_anew(chat: Chat) -> None:
    chat.say("/regen\n")
    chat.until("no reply to make anew")
    chat.asked()
    chat.say("hello\n")
    chat.until('[{"role": "user", "content": "hello"}]')
    chat.asked()
    chat.say("/regen\n")
    chat.until('[{"role": "user", "content": "hello"}]')
    chat.asked()


def test_system_and_reset(chat: Chat) -> None:
    chat.say("/system Be brief.\n")
    chat.asked()
    chat.say("one\n")
    chat.until('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]')
    chat.asked()
    chat.say("/reset\n")
    chat.asked()
    chat.say("two\n")
    chat.until('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]')
    chat.asked()


def test_help_names_every_command(chat: Chat) -> None:
    chat.say("/help\n")
    shown = chat.until("Ctrl-C")
    for name in ("/help", "/reset", "/exit", "/system", "/regen", "/stats"):
        assert name in shown
    chat.asked()


def test_reasoning_is_dimmed_and_the_answer_is_not(chat: Chat) -> None:
    chat.say("think\n")
    chat.terminal.expect_exact("\x1b[2mhm\x1b[0m")
    chat.terminal.expect_exact("\x1b[2m hm\x1b[0m")
    chat.terminal.expect(r"\r\nForty-two\.")
    chat.asked()


def test_a_model_cannot_drive_the_terminal(chat: Chat) -> None:
    chat.say("escape\n")
    chat.terminal.expect_exact("a[31mbc\r\n")
    chat.asked()


def test_no_colour_means_no_colour() -> None:
    chat = Chat(env={"NO_COLOR": "1"})
    chat.asked()
    chat.say("think\n")
    chat.terminal.expect(r"Forty-two\.")
    assert "\x1b[2m" not in chat.terminal.before
    chat.terminal.close(force=True)


def test_earlier_messages_come_back_in_the_next_chat() -> None:
    first = Chat()
    first.asked()
    first.say("remember me\n")
    first.until('"content": "remember me"}]')
    first.asked()
    first.say("\x04")
    assert first.end() == 0
    second = Chat()
    second.asked()
    second.say("\x1b[A")
    second.until("remember me")
    second.say("\n")
    second.until('[{"role": "user", "content": "remember me"}]')
    second.terminal.close(force=True)


def test_the_prompt_stays_out_of_a_redirected_answer(tmp_path: Path) -> None:
    out = tmp_path / "answers"
    chat = Chat(out=out)
    chat.asked()
    chat.say("one\n")
    chat.asked()
    chat.say("a\nb\n")
    chat.asked()
    chat.say("\x04")
    assert chat.end() == 0
    answers = out.read_text().splitlines()
    assert answers[0] == '[{"role": "user", "content": "one"}]'
    assert answers[1].endswith(r'{"role": "user", "content": "a\nb"}]')
    assert len(answers) == 2


def test_a_terminal_without_a_prompt_is_a_usage_error() -> None:
    terminal = pexpect.spawn(PROGRAM[0], [*PROGRAM[1:], "run"], cwd=str(ROOT), encoding="utf-8", timeout=20)
    terminal.expect_exact("there is no prompt")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 2


def test_run_does_not_read_a_terminal_beside_its_argument() -> None:
    terminal = pexpect.spawn(PROGRAM[0], [*PROGRAM[1:], "run", "hi"], cwd=str(ROOT), encoding="utf-8", timeout=20)
    terminal.expect_exact('"content": "hi"}]')
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_leaves_the_terminal_as_it_was(busy: bool) -> None:
    untouched = pexpect.spawn("sleep", ["60"], timeout=20)
    chat = Chat()
    chat.asked()
    assert modes(chat.terminal) != modes(untouched), "the line editor changes them, so that there is something to test"
    if busy:
        chat.say("slow\n")
        chat.until("word3")
    os.kill(chat.terminal.pid, signal.SIGTERM)
    chat.terminal.expect(pexpect.EOF)
    assert modes(chat.terminal) == modes(untouched)
    assert chat.end() == 143
    untouched.close(force=True)


def modes(terminal: pexpect.spawn) -> list[int]:
    return [int(flags) for flags in termios.tcgetattr(terminal.child_fd)[:4]]
