"""``dspark bench --simulate`` as it is typed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_cli.commands.process import run_program
from tests.bench.test_recorded_rounds import round_, write


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def _simulate(*arguments: str) -> int:
    return run_program(["bench", "--simulate", *arguments])


@pytest.fixture
def curve(tmp_path: Path) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"verify_ms": [10, 11, 12, 13, 14, 15, 16, 17], "draft_ms": 1}), encoding="utf-8")
    return str(path)


def test_the_table_has_a_line_for_each_text_and_curve(curve: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _simulate("--rounds", "60", "--curve", curve) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["curve", "text"]
    assert [line.split()[0] for line in lines[1:11]] == ["mine"] * 10
    assert "Algorithm 1" in lines[0]
    assert "Regret" in out
    assert "–" in lines[1], "60 rounds are too few for a cold reply"


def test_all_curves_that_are_shipped_are_used(capfd: pytest.CaptureFixture[str]) -> None:
    assert _simulate("--rounds", "40", "--json") == 0
    body = json.loads(capfd.readouterr().out)
    assert list(body["curves"]) == ["oneDNN", "llama.cpp", "GPU-like", "stair", "cliff"]
    assert body["curves"]["stair"] == {"verify_ms": [10.0] * 4 + [16.0] * 4, "draft_ms": 1.5}
    assert len(body["cells"]) == 50
    assert set(body["cells"][0]["strategies"]) == {"plain", "best fixed", "whole block", "paper", "auto"}


def test_a_trace_is_replayed(tmp_path: Path, curve: str, capfd: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "mail.jsonl", [round_(3, 3)] * 150 + [round_(3, 0)] * 50)
    path = tmp_path / "out.json"
    assert _simulate("--trace", str(trace), "--curve", curve, "--json", "--output", str(path)) == 0
    (cell,) = json.loads(capfd.readouterr().out)["cells"]
    assert json.loads(path.read_text(encoding="utf-8"))["cells"] == [cell]
    assert (cell["curve"], cell["text"], cell["unknown"]) == ("mine", "mail", 0.0)
    assert cell["strategies"]["whole block"]["accepted"] == 450
    assert cell["strategies"]["auto"]["tokens"] == 200 + cell["strategies"]["auto"]["accepted"]


def test_the_picture_of_many_replies(tmp_path: Path, curve: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.png"
    assert _simulate("--rounds", "640", "--curve", curve, "--json", "--plot", str(path)) == 0
    out, err = capfd.readouterr()
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"The picture is in {path}." in err
    points = json.loads(out)["parallel"]["code"]
    assert [point["replies"] for point in points] == [1, 2, 4, 8, 16, 32, 64]
    assert points[-1]["verified_length"] < points[0]["verified_length"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--simulate", "--rounds", "0"), "--rounds 0 leaves nothing to simulate"),
        (("--simulate", "--trace", "/nowhere.jsonl"), "/nowhere.jsonl cannot be read"),
        (("--simulate", "--curve", "/nowhere.json"), "/nowhere.json cannot be read"),
        (("--rounds", "5"), "are for --simulate alone"),
        (("--curve", "x.json"), "are for --simulate alone"),
        (("--plot", "x.png"), "are for --simulate alone"),
        (("--simulate", "--plot", "x.svg"), "is not a .png file"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(
    arguments: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_program(["bench", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert complaint in err
    assert "Traceback" not in err
