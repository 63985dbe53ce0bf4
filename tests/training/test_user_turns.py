"""User turns that the target writes itself, and prompts from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.engine.loading import LoadedPair
from dspark_cli.engine.text.chat_template import ChatTemplate
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.training.prompt_file import read_prompts
from dspark_cli.training.prompt_synthesis import Synthesiser, SynthesisRecipe

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"
TEMPLATE = "the {% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def pair() -> LoadedPair:
    """The tiny target, which ends its turns with a full stop or an "e"."""
    loaded = Engine.open(EngineOptions(GOLDEN / "target", "tiny", device="cpu", weight_cache=False)).pair
    stops = frozenset({*loaded.stop_ids, *loaded.tokenizer.encode("e.", special=False)})
    return replace(loaded, template=ChatTemplate(TEMPLATE), stop_ids=stops)


def turns(pair: LoadedPair, count: int, **recipe: int) -> list[str]:
    made = Synthesiser(pair, SynthesisRecipe(**{"most_user_tokens": 30, "parallel": 8, **recipe}), ())
    return list(islice(made.questions(), count))


def test_turns_differ_and_follow_the_seed(pair: LoadedPair) -> None:
    made = turns(pair, 12, seed=1)
    assert all(made)
    assert len(set(made)) == 12
    assert made == turns(pair, 12, seed=1)
    assert made != turns(pair, 12, seed=2)


def test_a_model_that_never_ends_its_turn_is_given_up(pair: LoadedPair) -> None:
    endless = replace(pair, stop_ids=frozenset())
    with pytest.raises(DsparkError, match=r"tiny writes no user turns.*--prompts"):
        turns(endless, 1, most_user_tokens=2, parallel=64)


def test_a_template_that_opens_no_turn_is_told(pair: LoadedPair) -> None:
    bare = replace(pair, template=ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}"))
    with pytest.raises(DsparkError, match=r"does not open the user's turn.*--prompts"):
        turns(bare, 1)


def test_prompts_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "four"}]
    lines = [{"text": " one "}, {"prompt": "two"}, "three", {"messages": messages}, {"text": "one"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert read_prompts(path) == ["one", "two", "three", "four"]


def test_prompts_from_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text('one\n\n  {"text": "two"} \nécrire\none\n', encoding="utf-8")
    assert read_prompts(path) == ["one", '{"text": "two"}', "écrire"]
    with pytest.raises(UsageError, match=r"holds 3 different prompts: give at least 4"):
        read_prompts(path, fewest=4)


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"text": ""}', '{"words": "a"}', '{"messages": []}', '" "'])
def test_lines_that_hold_no_prompt(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UsageError, match="line 2"):
        read_prompts(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    for path in (tmp_path / "none", tmp_path / "latin", tmp_path):
        with pytest.raises(UsageError, match=r"cannot be read \((No such file|Is a dir)|is not UTF-8"):
            read_prompts(path)
