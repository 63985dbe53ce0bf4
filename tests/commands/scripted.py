"""Runs ``dspark`` with the scripted engine in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "tests.fakes.scripted_program")


def dspark(*arguments: str | bytes, stdin: bytes | None = b"", shell: str = "") -> subprocess.CompletedProcess[bytes]:
    """The finished process. ``shell`` is put after the command line, for redirections and pipes."""
    if shell:
        line = 'exec "$@" ' + shell
        return subprocess.run(
            ["bash", "-c", line, "bash", *PROGRAM, *arguments], input=stdin, capture_output=True, cwd=ROOT, timeout=60
        )
    return subprocess.run([*PROGRAM, *arguments], input=stdin, capture_output=True, cwd=ROOT, timeout=60)


def answer_to(text: str) -> bytes:
    """What the scripted engine answers to the first message ``text``, as it stands on standard output."""
    import json

    return (json.dumps([{"role": "user", "content": text}], ensure_ascii=False) + "\n").encode()
