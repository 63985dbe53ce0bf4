"""From settings to an engine, with real files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dspark_cli import interruption
from dspark_cli.commands.opening import open_engine
from dspark_cli.console import Console
from dspark_cli.settings import Settings

TARGET = Path(__file__).resolve().parents[1] / "golden" / "qwen3-tiny" / "target"


@pytest.mark.parametrize(
    ("drafter", "schedule", "told"),
    [
        ("none", "fixed:3", "note: --schedule fixed:3 does nothing without a drafter\n"),
        ("none", "off", ""),
        ("none", None, ""),
        ("ngram", "fixed:3", ""),
    ],
)
def test_a_schedule_without_a_drafter_is_told(drafter: str, schedule: str | None, told: str) -> None:
    err = io.StringIO()
    settings = Settings(model=str(TARGET), drafter=drafter, schedule=schedule, device="cpu", weight_cache=False)
    engine, _ = open_engine(settings, Console(io.StringIO(), err))
    engine.close()
    assert err.getvalue() == told


@pytest.mark.parametrize(("number", "error"), [(2, KeyboardInterrupt), (15, interruption.Terminated)])
def test_a_signal_that_got_lost_is_found_again(
    number: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_came", [number])
    settings = Settings(model=str(TARGET), drafter="none", device="cpu", weight_cache=False)
    with pytest.raises(error):
        open_engine(settings, Console(io.StringIO(), io.StringIO()))
