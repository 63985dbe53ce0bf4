"""The prompts that come with the package are well formed, and a user's file is read or refused in one sentence."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from dspark_cli.bench.prompt_sets import KINDS, prompts_from_file, shipped_prompts
from dspark_cli.errors import UsageError


def test_shipped_prompts_come_in_turn_by_kind() -> None:
    prompts = shipped_prompts()
    assert tuple(prompt.kind for prompt in prompts) == KINDS * (len(prompts) // 4)
    assert len(prompts) >= 4 * 8
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert shipped_prompts(2) == prompts[:8]


@pytest.mark.parametrize("kind", KINDS)
def test_each_shipped_file_is_lines_of_id_and_text(kind: str) -> None:
    text = resources.files("dspark_cli.bench").joinpath("prompts", f"{kind}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) >= 8
    for row in rows:
        assert set(row) == {"id", "text"}
        assert row["text"] == row["text"].strip()
        assert 20 <= len(row["text"]) <= 700


def test_copying_prompts_carry_the_text_that_they_ask_for() -> None:
    copying = [prompt.text for prompt in shipped_prompts() if prompt.kind == "copying"]
    for text in copying:
        request, _, given = text.partition("\n\n")
        assert len(given) > 1.5 * len(request)


def test_own_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_text('{"text": "Grüße"}\n\n{"id": "b", "kind": "code", "text": "x = 1"}\n', encoding="utf-8")
    found = [(prompt.id, prompt.kind, prompt.text) for prompt in prompts_from_file(path)]
    assert found == [("1", "mail", "Grüße"), ("b", "code", "x = 1")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "holds no prompt"),
        (b"hello\n", "line 1 of .* is not JSON"),
        (b'{"text": "a"}\n{"prompt": "b"}\n', "line 2 of .* has no text"),
        (b'["a"]\n', "line 1 of .* has no text"),
        (b'{"text": " "}\n', "line 1 of .* has no text"),
        (b'{"text": "a", "id": 7}\n{"text": "b", "id": "7"}\n', "the id '7' twice"),
        (b'{"text": "\xff"}\n', "is not UTF-8 text"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        prompts_from_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        prompts_from_file(tmp_path / "none.jsonl")
