"""``dspark`` as a process with the scripted engine in place of the real one (run it with python -m)."""

from __future__ import annotations

import sys

from dspark_cli.catalog.lookup import Pair
from dspark_cli.commands import chat, process, run
from dspark_cli.console import Console
from dspark_cli.settings import Settings
from tests.fakes.scripted_engine import Sampling, ScriptedEngine


def open_engine(settings: Settings, console: Console) -> tuple[ScriptedEngine, Pair]:
    assert "torch" not in sys.modules
    return ScriptedEngine(default_sampling=Sampling()), Pair("scripted", "scripted", "ngram", "ngram", "prompt lookup")


if __name__ == "__main__":
    run.open_engine = chat.open_engine = open_engine
    sys.exit(process.run_program(sys.argv[1:]))
