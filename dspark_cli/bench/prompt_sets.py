"""The prompts that come with the package: four kinds, because drafts fare differently on each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dspark_cli.errors import UsageError

KINDS = ("chat", "code", "math", "copying")


@dataclass(frozen=True)
class BenchPrompt:
    """One user message. ``kind`` groups prompts in the tables."""

    id: str
    kind: str
    text: str


def shipped_prompts(per_kind: int | None = None) -> tuple[BenchPrompt, ...]:
    """The package's own prompts, one of each kind in turn, so that a run cut short has seen all kinds.

    Args:
        per_kind: how many of each kind; None means all.
    """
    folder = resources.files("dspark_cli.bench").joinpath("prompts")
    sets = [
        _parse(folder.joinpath(f"{kind}.jsonl").read_text(encoding="utf-8"), f"{kind}.jsonl", kind)[:per_kind]
        for kind in KINDS
    ]
    return tuple(prompt for row in zip(*sets, strict=True) for prompt in row)


def prompts_from_file(path: Path) -> tuple[BenchPrompt, ...]:
    """The user's own prompts: a JSON object a line with ``text``, and perhaps ``id`` and ``kind``.

    Raises:
        UsageError: the file cannot be read, a line is not such an object, or two have the same id.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        way_out = "give a JSONL file" if path.is_dir() else "check the path"
        raise UsageError(f"--prompts {path} cannot be read ({error.strerror})", way_out) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts {path} is not UTF-8 text", "convert it first, for example with iconv") from error
    prompts = _parse(text, str(path), path.stem)
    if not prompts:
        raise UsageError(f"--prompts {path} holds no prompt", 'write a line such as {"text": "Hello"}')
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise UsageError(f"--prompts {path} has the id {twice!r} twice", "give each prompt an id of its own")
    return tuple(prompts)


def _parse(text: str, name: str, default_kind: str) -> list[BenchPrompt]:
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
        except ValueError as error:
            raise UsageError(f"line {number} of {name} is not JSON ({error})", "write one object a line") from error
        content = body.get("text") if isinstance(body, dict) else None
        if not isinstance(content, str) or not content.strip():
            raise UsageError(f"line {number} of {name} has no text", 'write a line such as {"text": "Hello"}')
        prompts.append(BenchPrompt(str(body.get("id", number)), str(body.get("kind", default_kind)), content))
    return prompts
