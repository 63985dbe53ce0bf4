"""Ctrl-C and SIGTERM are not lost where Python drops exceptions. Each case is a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.commands.scripted import ROOT

SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
BEGIN = """
import signal, sys, time, weakref
from dspark_cli import interruption
from dspark_cli.commands.process import guarded
from dspark_cli.console import Console
interruption.install()
class Thing: pass
def dropping():
    print("ready", flush=True)
    time.sleep(60)
def end(work):
    sys.exit(interruption.leave(guarded(work, Console.standard(), debug=False)))
"""


def started(program: str) -> subprocess.Popen[bytes]:
    """``program`` after it said 'ready'."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", BEGIN + program], stdout=pipe, stderr=pipe, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.05)
    return process


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_that_falls_into_a_finalizer_still_ends_the_work_soon(number: signal.Signals, code: int) -> None:
    program = """
def work():
    thing = Thing()
    weakref.finalize(thing, dropping)
    reference = weakref.ref(thing, lambda _: dropping())
    del thing
    time.sleep(60)
    return 0
end(work)
"""
    with started(program) as process:
        process.send_signal(number)  # ends the first dropping(), and is dropped itself
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, b"")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_work_that_swallows_the_signal_and_goes_on_never_counts_as_done(number: signal.Signals, code: int) -> None:
    program = """
def work():
    try:
        dropping()
    except BaseException:
        pass
    return 0
end(work)
"""
    with started(program) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, b"")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_check_raises_anew_what_was_swallowed(number: signal.Signals, code: int) -> None:
    program = """
def work():
    try:
        dropping()
    except BaseException:
        pass
    interruption.check()
    print("went on")
    return 0
end(work)
"""
    with started(program) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, b"")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_second_signal_ends_at_once(number: signal.Signals, code: int) -> None:
    program = """
def work():
    try:
        dropping()
    finally:
        print("closing", flush=True)
        time.sleep(60)
    return 0
end(work)
"""
    with started(program) as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == b"closing\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, b"")


def test_ctrl_c_can_be_forgotten_and_sigterm_cannot() -> None:
    program = """
def work():
    for _ in range(2):
        try:
            dropping()
        except BaseException:
            interruption.forget()
    interruption.check()
    return 0
end(work)
"""
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        with started(program) as process:
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.05)
            process.send_signal(number)
            process.communicate(timeout=20)
        assert process.returncode == code


def test_a_process_that_is_deaf_to_ctrl_c_stays_so() -> None:
    program = "signal.signal(signal.SIGINT, signal.SIG_IGN); interruption.install(); dropping()"
    with started(program) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode != 0


def test_an_early_signal_is_quiet() -> None:
    """Right after the first line of the program, when the imports begin."""
    line = (
        "import os, signal, sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'dspark_cli.commands.process': os.kill(os.getpid(), {})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dspark_cli.__main__ import main\n"
        "main()\n"
    )
    for number, code in SIGNALS:
        done = subprocess.run(
            [sys.executable, "-c", line.format(int(number))], capture_output=True, cwd=ROOT, check=False, timeout=20
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
