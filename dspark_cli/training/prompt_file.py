"""The user's own prompts from a file: JSON lines, or plain text with a prompt a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dspark_cli.errors import UsageError

_KEYS = ("text", "prompt", "instruction", "question")


def read_prompts(path: Path, fewest: int = 1) -> list[str]:
    """The prompts of a file in UTF-8, each once, in their order.

    A file that ends in .jsonl holds a JSON object a line with ``text`` (or ``prompt``, ``instruction``, ``question``),
    or ``messages`` whose first user message is taken, or a JSON string. Any other file holds a prompt a line.

    Raises:
        UsageError: it cannot be read, a line is not such an object, or it holds fewer than ``fewest`` prompts.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        way_out = "give a text or JSONL file" if path.is_dir() else "check the path"
        raise UsageError(f"--prompts {path} cannot be read ({error.strerror})", way_out) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts {path} is not UTF-8 text", "convert it first, for example with iconv") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix == ".jsonl":
        found = [_prompt(line, f"line {number} of {path}") for number, line in numbered]
    else:
        found = [line.strip() for _, line in numbered]
    prompts = list(dict.fromkeys(found))
    if len(prompts) < fewest:
        raise UsageError(f"--prompts {path} holds {_counted(len(prompts))}", f"give at least {fewest}")
    return prompts


def _counted(number: int) -> str:
    return "no prompt" if number == 0 else f"{number} different prompts" if number > 1 else "only 1 prompt"


def _prompt(line: str, where: str) -> str:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error})", "write one object a line") from error
    text = body if isinstance(body, str) else _text(body)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where} has no text", 'write a line such as {"text": "Hello"}')
    return text.strip()


def _text(body: Any) -> Any:
    if not isinstance(body, dict):
        return None
    for key in _KEYS:
        if body.get(key):
            return body[key]
    messages = body.get("messages")
    told = messages if isinstance(messages, list) else []
    users = [one for one in told if isinstance(one, dict) and one.get("role") == "user"]
    return users[0].get("content") if users else None
