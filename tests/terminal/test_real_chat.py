"""The demo model in a real chat: the whole way from the terminal to the weights and back."""

from __future__ import annotations

import os
import re
import sys

import pexpect

from tests.commands.scripted import ROOT


def test_the_demo_model_answers_and_remembers() -> None:
    environment = {**os.environ, "TERM": "dumb"}
    arguments = ["-m", "dspark_cli", "chat", "--stats", "--threads", "1", "--no-weight-cache", "--temperature", "0"]
    chat = pexpect.spawn(
        sys.executable, arguments, cwd=str(ROOT), env=environment, encoding="utf-8", timeout=120, dimensions=(40, 250)
    )
    chat.expect_exact("smollm2-135m, drafts by prompt lookup")
    chat.expect_exact("> ")
    chat.send("What is the capital of France?\n")
    chat.expect_exact("The capital of France is Paris.\r\n")
    chat.expect(r"prompt (\d+) tokens \((\d+) cached\)")
    first, cached = int(chat.match[1]), int(chat.match[2])
    assert cached == 0
    chat.expect_exact("> ")
    chat.send("And of Italy?\n")
    chat.expect(r"prompt (\d+) tokens \((\d+) cached\)")
    assert int(chat.match[2]) > first, "the second turn reads only its new tokens"
    assert re.search(r"Rome|Italy", chat.before)
    chat.expect_exact("> ")
    chat.send("Write a very long story about the sea.\n")
    chat.expect_exact("sea.\r\n")
    chat.expect(r"\w+ \w+ \w+")
    chat.sendintr()
    chat.expect_exact("(stopped)")
    chat.expect_exact("> ")
    chat.send("\x04")
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0
