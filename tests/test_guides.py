"""The hand-written pages against the tree and the program, so that they cannot drift unseen.

Run as a program (``make docs``) it writes docs/modules.md.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import get_args

import pytest

from dspark_cli import errors
from dspark_cli.commands.verb_table import VERBS
from dspark_cli.events import Event
from dspark_cli.settings import SPECS, flag, variable
from tests.test_import_layers import LAYERS, modules

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/DESIGN.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULE_PAGE = ROOT / "docs" / "modules.md"
DESIGN = (ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []


def code(page: str) -> str:
    """The code of a page, a line each: fenced blocks and what stands between backticks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return "\n".join([*fenced, *spans])


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", code(page))) <= known


@pytest.mark.parametrize("page", PAGES)
def test_commands_flags_and_variables_exist(page: str) -> None:
    lines = code(page)
    assert set(re.findall(r"(?:^|[|] )dspark ([a-z]+)", lines, re.MULTILINE)) <= {verb.name for verb in VERBS}
    assert set(re.findall(r"DSPARK_[A-Z_]+", lines)) <= {variable(name) for name in SPECS}
    own = {"--stats", "--json", "--raw", "--quick", "--peers", "--help", "--debug"}
    flags = set(
        re.findall(r"(?<!\S)--[a-z][a-z-]+", "\n".join(re.findall(r"^(?:.*dspark )?--?.*$", lines, re.MULTILINE)))
    )
    switched_off = {f"--no-{flag(name)[2:]}" for name, spec in SPECS.items() if spec.kind == "switch"}
    assert flags <= own | switched_off | {flag(name) for name in SPECS}


def test_the_readme_tells_every_exit_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    rows = re.findall(r"^\| ([\d /]+) \|", README, re.MULTILINE)
    assert {int(code) for row in rows for code in row.split("/")} == codes | {0}


def test_the_readme_tells_every_kind_of_event() -> None:
    kinds = re.search(r"`--json` writes one JSON object a line: (.*?)\.", README, re.DOTALL)
    assert kinds is not None
    assert set(re.findall(r"`(\w+)`", kinds[1])) <= {kind.event for kind in get_args(Event)}


def test_the_design_page_shows_the_layers() -> None:
    rows = dict(
        re.findall(r"^\| (\w+) \| ([^|]+) \|", DESIGN.partition("## Layers")[2].partition("\n## ")[0], re.MULTILINE)
    )
    shown = {name: set(re.findall(r"[\w.]+", members.partition(": ")[2] or members)) for name, members in rows.items()}
    shown.pop("layer")
    assert shown == {layer.name: {member.removeprefix("engine.") for member in layer.members} for layer in LAYERS}


def test_the_module_page_is_up_to_date() -> None:
    assert MODULE_PAGE.read_text(encoding="utf-8") == module_page(), "write it anew with make docs"


def test_the_costs_are_those_that_were_measured() -> None:
    spec = importlib.util.spec_from_file_location("write_costs", ROOT / "docs" / "costs" / "write.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.readme() == README, "write it anew with make docs"
    assert "×" in writer.block()


def module_page() -> str:
    """Every module by its folder, with the first sentence of its docstring."""
    lines = ["# The modules", "", "Made from the docstrings by `make docs`; change them there."]
    folder = None
    for path in sorted(modules().values(), key=lambda path: (path.parent.as_posix(), path.name)):
        if path.stat().st_size == 0:
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring, f"{path} does not say what it is for"
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"## {folder.relative_to(ROOT).as_posix()}", ""]
        lines.append(f"- `{path.name}`: {docstring.splitlines()[0].replace('``', '`')}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MODULE_PAGE.write_text(module_page(), encoding="utf-8")
