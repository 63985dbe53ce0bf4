"""Help must come at once: no torch, nothing heavy, under 0.3 s."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "huggingface_hub", "transformers", "textual", "rich", "jinja2", "tokenizers", "gguf")


def imported_by(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dspark_cli", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, 2), done.stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("--version",), ("run", "--help"), ("chat", "--help"), ("config",), ("run", "--top-p", "2", "x")],
)
def test_help_and_usage_errors_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    found = imported_by(*arguments)
    assert "typer" in found, "the list of imports was read"
    assert found.isdisjoint(HEAVY)


def test_help_is_there_within_three_tenths_of_a_second() -> None:
    """Processor time, which is what the wait is on an idle machine, and no longer on one that others use too."""
    took = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "dspark_cli", "--help"], capture_output=True, check=True, timeout=60)
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert 0.0 < min(took) < 0.3
