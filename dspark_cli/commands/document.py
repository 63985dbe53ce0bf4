"""Writes what is generated from the program: docs/cli.md and config.example.toml.

Run ``python -m dspark_cli.commands.document`` in the root of the repository; tests/test_documents.py compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspark_cli.catalog import lookup
from dspark_cli.commands.config import example_file
from dspark_cli.commands.verb_table import VERBS, program

_WIDTH = 100


def cli_page() -> str:
    """The help of the program and of every verb as one page."""
    command: Any = program()
    lines = [
        "# The command line",
        "",
        "Made from the program by `python -m dspark_cli.commands.document`; change it there.",
        "",
        "Answers go to standard output, all else to standard error. Exit codes: 0 done, 1 an error, 2 a flag or",
        "argument that cannot be meant, 130 stopped with Ctrl-C, 141 the reader of the output is gone, 143 terminated.",
    ]
    with command.make_context("dspark", [], resilient_parsing=True, terminal_width=_WIDTH) as context:
        lines += _section("dspark", context)
        for verb in VERBS:
            verb_command: Any = command.get_command(context, verb.name)
            with verb_command.make_context(verb.name, [], parent=context, resilient_parsing=True) as verb_context:
                lines += _section(f"dspark {verb.name}", verb_context)
    return "\n".join([*lines, *_names()]) + "\n"


def _names() -> list[str]:
    """The names that --model and --drafter know."""
    known = lookup.catalog()
    lines = ["", "## Names", "", "What `--model` knows by name, beside folders, .gguf files and owner/repo:", ""]
    lines += [f"- `{name}`: {entry.title}" for name, entry in known.models.items()]
    lines += [
        "",
        f"What `--drafter` knows, beside folders and owner/repo, `{lookup.NGRAM}` and `{lookup.NO_DRAFTER}`:",
        "",
    ]
    return lines + [f"- `{name}`: {entry.title}" for name, entry in known.drafters.items()]


def _section(title: str, context: Any) -> list[str]:
    return ["", f"## {title}", "", "```", context.get_help().rstrip(), "```"]


def documents() -> dict[str, str]:
    """Every generated file by its path in the repository."""
    return {"docs/cli.md": cli_page(), "config.example.toml": example_file()}


def main() -> None:
    """Write them into the working directory."""
    for name, text in documents().items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
