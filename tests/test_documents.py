"""What is generated from the program stands in the repository as the program would write it now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dspark_cli.commands.config import example_file
from dspark_cli.commands.document import documents
from dspark_cli.settings import DEFAULTS, SPECS, flag, merge, read_file

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["docs/cli.md", "config.example.toml"])
def test_generated_files_are_up_to_date(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == documents()[name], "run python -m dspark_cli.commands.document"


def test_the_example_file_sets_nothing_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(example_file(), encoding="utf-8")
    assert merge({}, {}, file).settings == DEFAULTS


def test_the_example_file_without_its_marks_sets_everything(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(re.sub(r"(?m)^# (?=\w+ = )", "", example_file()), encoding="utf-8")
    assert set(read_file(file)) == set(SPECS)


def test_the_command_line_page_names_every_flag() -> None:
    page = documents()["docs/cli.md"]
    for name in SPECS:
        assert flag(name) in page
