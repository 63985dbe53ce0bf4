"""``dspark bench`` as it is typed: streams, files, exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_cli.bench import peers
from dspark_cli.bench.modes import Task
from dspark_cli.bench.samples import Sample
from dspark_cli.commands.process import run_program
from tests.bench.test_session import GOLDEN, TEXTS

PAIR = ("--model", str(GOLDEN / "target"), "--drafter", str(GOLDEN / "drafter-vanilla"), "--device", "cpu")


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:3]), encoding="utf-8")
    return str(path)


class Impatient:
    """A mode whose user presses Ctrl-C during its third reply, the warm-up counted."""

    name = "impatient"

    def __init__(self) -> None:
        self.replies = 0

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        self.replies += 1
        if self.replies == 3:
            signal.raise_signal(signal.SIGINT)
        return Sample(self.name, task.source.id, task.source.kind, (1, 2, 3), 10.0, 5.0)


def _bench(*arguments: str) -> int:
    return run_program(["bench", *arguments])


def test_the_table_goes_to_standard_output(prompts: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _bench(*PAIR, "--prompts", prompts, "--tokens", "12", "--quick") == 0
    out, err = capfd.readouterr()
    assert err == "", "no progress where nobody watches"
    assert out.startswith("dspark ")
    for part in ("plain", "dspark fixed:7", "against one row", "Greedy tokens", "at most 12 tokens to 3 prompts"):
        assert part in out
    assert "\x1b" not in out


def test_json_is_one_object_and_goes_to_a_file_too(
    prompts: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    arguments = ("--prompts", prompts, "--tokens", "12", "--schedule", "fixed:3", "--json", "--output", str(path))
    assert _bench(*PAIR, *arguments) == 0
    out, err = capfd.readouterr()
    body = json.loads(out)
    assert out.count("\n") == 1
    assert json.loads(path.read_text(encoding="utf-8")) == body
    assert f"All figures and replies are in {path}." in err
    assert (body["bench"], body["quick"], body["max_new_tokens"], body["stopped"]) == (1, False, 12, None)
    assert (body["model"], body["drafter"], body["device"], body["threads"]) == ("target", "drafter-vanilla", "cpu", 1)
    assert [mode["mode"] for mode in body["modes"]] == ["plain", "dspark fixed:3"]
    assert len(body["replies"]) == 6
    assert len(body["steps"]["ms"][0]) == 30


def test_off_is_compared_with_the_default(prompts: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _bench(*PAIR, "--prompts", prompts, "--tokens", "4", "--schedule", "off") == 0
    out, err = capfd.readouterr()
    assert "dspark fixed:7" in out
    assert "compared with the default schedule" in err


def test_interrupted_it_prints_what_it_has_and_exits_130(
    prompts: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "open_peers", lambda names, pair, tell: ([Impatient()], []))
    assert _bench(*PAIR, "--prompts", prompts, "--tokens", "12", "--peers", "transformers") == 130
    out, _ = capfd.readouterr()
    assert "Interrupted after 1 of 3 prompts." in out
    assert "dspark fixed:7" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--peers", "vllm"), "--peers 'vllm' names no known peer"),
        (("--tokens", "1"), "--tokens 1 leaves nothing to time"),
        (("--tokens", "many"), "whole number"),
        (("--prompts", "/nowhere.jsonl"), "--prompts /nowhere.jsonl cannot be read"),
        (("--output", "bench.html"), "is not a .json file"),
        (("--output", "/nowhere/bench.json"), "a folder that does not exist"),
        (("--schedule", "sometimes"), "sometimes"),
        (("extra",), "extra"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(
    arguments: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _bench(*PAIR, *arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert complaint in err
    assert "Traceback" not in err
