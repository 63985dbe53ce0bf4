from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from dspark_cli.events import End, Start, Text, from_json
from tests.commands.scripted import PROGRAM, ROOT, answer_to, dspark


def test_the_answer_alone_goes_to_standard_output() -> None:
    done = dspark("run", "héllo")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer_to("héllo"), b"")


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["hi"], b"", "hi"),
        (["hi"], b"\n", "hi"),
        (["hi"], b"text\n", "hi\n\ntext"),
        (["hi"], b"  text \n\n", "hi\n\n  text \n"),
        (["hi\n"], b"text\r\n", "hi\n\n\ntext\r"),
        ([], b"text", "text"),
        ([], b"text\n", "text"),
        ([], b"\n\n", "\n"),
        (["-"], b"text\n", "text"),
        (["hi", "-"], b"text\n", "hi\n\ntext"),
        (["--", "--raw"], b"", "--raw"),
    ],
)
def test_the_argument_and_the_piped_text_are_joined_by_a_blank_line(
    arguments: list[str], stdin: bytes, prompt: str
) -> None:
    done = dspark("run", *arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, answer_to(prompt))


def running(*arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*PROGRAM, "run", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


def test_a_silent_pipe_is_waited_for_one_second_only() -> None:
    began = time.monotonic()
    with running("hi") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        out = process.stdout.read()  # standard input stays open all the while
        took = time.monotonic() - began
        process.stdin.close()
        process.wait(30)
    assert (process.returncode, out) == (0, answer_to("hi"))
    assert took >= 1.0


def test_after_a_first_byte_input_is_read_to_its_end() -> None:
    with running("hi") as process:
        assert process.stdin is not None
        process.stdin.write(b"slow")
        process.stdin.flush()
        time.sleep(2.0)
        out, _ = process.communicate(b" pipe\n", 30)
    assert (process.returncode, out) == (0, answer_to("hi\n\nslow pipe"))


def test_a_dash_waits_longer_than_a_second() -> None:
    with running("hi", "-") as process:
        time.sleep(2.0)
        out, _ = process.communicate(b"late\n", 30)
    assert (process.returncode, out) == (0, answer_to("hi\n\nlate"))


def test_raw_skips_the_template() -> None:
    assert dspark("run", "--raw", "once upon").stdout == b"raw 'once upon'\n"


def test_the_system_prompt_and_the_stop_texts_arrive() -> None:
    done = dspark("run", "hi", "--system", "Be brief.")
    assert json.loads(done.stdout)[0] == {"role": "system", "content": "Be brief."}


def test_reasoning_goes_to_standard_error() -> None:
    done = dspark("run", "think")
    assert (done.stdout, done.stderr) == (b"Forty-two.\n", b"hm hm\n")


def test_stats_is_one_line_on_standard_error() -> None:
    done = dspark("run", "--stats", "hi")
    assert done.stdout == answer_to("hi")
    (line,) = done.stderr.decode().splitlines()
    assert "tokens/s" in line
    assert "accepted length" in line
    assert "schedule off" in line


def test_json_writes_events_and_nothing_else() -> None:
    done = dspark("run", "--json", "think", "--seed", "7")
    events = [from_json(line) for line in done.stdout.decode().splitlines()]
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], End)
    assert events[0].seed == 7
    assert "".join(event.delta for event in events if isinstance(event, Text)) == events[-1].text
    assert done.stderr == b""


def test_json_is_utf8_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert "“ü”" in dspark("run", "--json", "“ü”").stdout.decode("utf-8")
    assert dspark("run", "“ü”").stdout == answer_to("“ü”").decode().encode("latin-1", errors="replace")


def test_an_error_in_the_middle_keeps_what_came() -> None:
    done = dspark("run", "fail")
    assert (done.returncode, done.stdout) == (1, b"I begin well \n")
    assert done.stderr == b"dspark: the device was unplugged: plug it in again.\n"


def test_an_error_in_json_still_has_its_end_event() -> None:
    done = dspark("run", "--json", "fail")
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["reason"] == "error"


def test_a_bug_is_one_sentence_and_a_traceback_on_demand() -> None:
    plain, debug = dspark("run", "crash"), dspark("run", "crash", "--debug")
    assert plain.returncode == debug.returncode == 1
    assert plain.stderr.count(b"\n") == 1
    assert b"Traceback" not in plain.stderr
    assert b"Traceback" in debug.stderr
    assert b"RuntimeError: a bug" in debug.stderr


def test_a_cut_off_reply_says_so() -> None:
    done = dspark("run", "--max-new-tokens", "2", "hi")
    assert len(done.stdout) == 15
    assert b"after 2 tokens; --max-new-tokens" in done.stderr
    assert b"after 1 token;" in dspark("run", "--max-new-tokens", "1", "hi").stderr


def test_a_warning_is_told() -> None:
    assert dspark("run", "note").stderr == b"warning: something was replaced\n"


def test_nothing_is_styled_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for arguments in (["run", "think", "--stats"], ["run", "fail"], ["--help"], ["run", "--top-p", "2", "hi"]):
        done = dspark(*arguments)
        assert b"\x1b" not in done.stdout + done.stderr


def test_the_answer_is_not_changed_for_a_pipe() -> None:
    assert dspark("run", "escape").stdout == b"a\x1b[31mb\x07c\n\td\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--temperature", "-1"], ["--temperature", "0 or more", "-1"]),
        (["--temperature", "warm"], ["--temperature", "a number", "warm"]),
        (["--temperature", "nan"], ["--temperature", "a number", "nan"]),
        (["--top-p", "2"], ["--top-p", "above 0 and at most 1"]),
        (["--top-p", "0"], ["--top-p", "above 0"]),
        (["--top-k", "1.5"], ["--top-k", "a whole number"]),
        (["--min-p", "-0.1"], ["--min-p", "from 0 to 1"]),
        (["--presence-penalty", "3"], ["--presence-penalty", "from -2 to 2"]),
        (["--seed", "-3"], ["--seed", "whole number"]),
        (["--max-new-tokens", "0"], ["--max-new-tokens", "1 or more"]),
        (["--schedule", "foo"], ["--schedule", "fixed:N", "threshold:P", "off"]),
        (["--schedule", "threshold:1.5"], ["--schedule", "from 0 to 1"]),
        (["--device", "tpu"], ["--device", "cuda:N"]),
        (["--kernels", "fast"], ["--kernels", "fbgemm"]),
        (["--threads", "0"], ["--threads", "from 1"]),
        (["--temprature", "1"], ["--temprature", "--temperature"]),
        (["--seed"], ["--seed", "dspark run --help"]),
        (["--nosuch"], ["there is no option --nosuch: dspark run --help"]),
        (["--model", ""], ["--model must be a folder"]),
        (["--context-length", "1"], ["--context-length", "2 or more"]),
    ],
)
def test_a_wrong_flag_is_a_usage_error_that_names_what_is_allowed(arguments: list[str], named: list[str]) -> None:
    done = dspark("run", "hi", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    for words in named:
        assert words in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [([], b""), ([], b"\n"), ([""], b""), (["two", "words"], b""), (["-"], b"")],
)
def test_no_prompt_is_a_usage_error(arguments: list[str], stdin: bytes) -> None:
    done = dspark("run", *arguments, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_undecodable_input_is_told_with_its_place(verb: str) -> None:
    done = dspark(verb, stdin=b"good \xff bad")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"0xff at offset 5" in done.stderr


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_input_with_a_nul_byte_is_no_text(verb: str) -> None:
    done = dspark(verb, stdin="ü\0 bad".encode())
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert b"NUL byte at offset 2" in done.stderr


def test_a_misspelt_variable_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_TEMPRATURE", "1")
    done = dspark("run", "hi")
    assert (done.returncode, done.stdout) == (0, answer_to("hi"))
    assert done.stderr == b"note: DSPARK_TEMPRATURE is no setting: did you mean DSPARK_TEMPERATURE?\n"
    assert b"DSPARK_TEMPERATURE?" in dspark("config").stderr


def test_an_undecodable_argument_is_a_usage_error() -> None:
    done = dspark("run", b"\xff\xfe")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert dspark("run", "hi", "--system", b"\xff").returncode == 2


@pytest.mark.parametrize("verb", [("run",), ("run", "-"), ("chat",)])
def test_closed_standard_input_is_told(verb: tuple[str, ...]) -> None:
    done = dspark(*verb, shell="<&-")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"dspark: standard input is closed")


def test_closed_standard_input_does_not_matter_beside_an_argument() -> None:
    done = dspark("run", "hi", shell="<&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer_to("hi"), b"")


@pytest.mark.parametrize("arguments", [("run", "hi"), ("chat",), ("--help",), ("config",)])
def test_closed_standard_output_is_told(arguments: tuple[str, ...]) -> None:
    done = dspark(*arguments, shell=">&-", stdin=b"hi")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"standard output is closed" in done.stderr


def test_closed_standard_error_costs_no_answer() -> None:
    assert dspark("run", "think", "--stats", shell="2>&-").stdout == b"Forty-two.\n"


def test_a_full_disk_is_told_once() -> None:
    done = dspark("run", "hi", shell=">/dev/full")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"No space left" in done.stderr


@pytest.mark.parametrize("arguments", [("run", "slow"), ("run", "--json", "slow"), ("chat",)])
def test_a_closed_pipe_ends_silently(arguments: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"slow" if arguments == ("chat",) else b"")
        process.stdin.close()
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_help_into_a_closed_pipe_ends_silently() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PROGRAM, "run", "--help"], stdout=write, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_keeps_what_came_and_says_130() -> None:
    with running("slow", "--stats") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdin is not None
        process.stdin.close()
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, err = process.stdout.read(), process.stderr.read()
        assert process.wait(30) == 130
    assert rest.endswith(b" \n")
    assert err.startswith(b"(stopped)\n")
    assert b"tokens/s" in err


def test_ctrl_c_in_json_ends_with_the_end_event() -> None:
    with running("slow", "--json") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdin.close()
        for _ in range(6):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
        assert process.wait(30) == 130
    assert json.loads(last)["reason"] == "cancelled"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_have_their_exit_codes(number: signal.Signals, code: int) -> None:
    with running("silent", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdin is not None
        process.stdin.close()
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(number)
        if number == signal.SIGINT:  # the first asks the reply to end, which this one never does
            time.sleep(0.3)
            process.send_signal(number)
        assert process.wait(30) == code
        assert process.stderr.read() == b""
