"""What dspark eval counts, against a reply counted by hand, and how repetitions are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.bench.prompt_sets import BenchPrompt
from dspark_cli.commands.eval import table
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.events import Round
from dspark_cli.training.evaluate import evaluate, repeats

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=64), st.integers(0, 7))
def test_two_periods_of_at_least_16_tokens_repeat(period: list[int], extra: int) -> None:
    times = max(2, -(-16 // len(period)))
    text = period * times + period[:extra]
    assert repeats([9, 8, *text])


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=200, unique=True))
def test_tokens_that_all_differ_never_repeat(ids: list[int]) -> None:
    assert not repeats(ids)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([7] * 15, False), ([7] * 16, True), ([1, 2] * 8, True), ([1, 2] * 8 + [3], False), (list(range(40)) * 2, True)],
)
def test_edges(ids: list[int], expected: bool) -> None:
    assert repeats(ids) is expected


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    target = tmp_path / "target"
    target.mkdir()
    for file in (GOLDEN / "target").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / "chat_template.jinja").write_text(TEMPLATE)
    return Engine.open(EngineOptions(target, "tiny", GOLDEN / "drafter-rnn", "rnn"))


def test_counts_are_those_of_the_replies(engine: Engine) -> None:
    prompts = [BenchPrompt("a", "math", "12+30="), BenchPrompt("b", "math", "7+9="), BenchPrompt("c", "chat", "1+1=")]
    done: list[int] = []
    result = evaluate(engine, prompts, tokens=24, passed=done.append)
    assert done == [1, 2, 3]
    tokens = rounds = accepted = verified = 0
    for prompt in prompts:
        request = engine.request(engine.raw_prompt(prompt.text), sampling=Sampling(), max_new_tokens=24)
        for event in engine.generate(request):
            if isinstance(event, Round) and event.draft:
                rounds += 1
                tokens += len(event.tokens)
                accepted += event.accepted
                verified += event.verified
    figures = result.figures()
    assert figures["all"]["rounds"] == rounds > 3
    assert figures["all"]["accepted_length"] == pytest.approx(tokens / rounds)
    assert figures["all"]["waste"] == pytest.approx(1 - accepted / verified)
    assert set(figures["by_kind"]) == {"math", "chat"}
    assert sum(kind["rounds"] for kind in figures["by_kind"].values()) == rounds
    text = table(result)
    assert f"{tokens / rounds:.2f}" in text.splitlines()[-5]
    assert "greedy, 3 prompts" in text


def test_a_round_inside_a_repetition_counts_apart(engine: Engine) -> None:
    result = evaluate(engine, [BenchPrompt("a", "math", "12+30=")], tokens=200)
    tally = result.whole
    assert 0 < tally.looping.draft_rounds < tally.every.draft_rounds, "the golden reply falls into a loop"
    without = tally.accepted_length_without_loops
    assert without is not None
    share = tally.looping.draft_rounds / tally.every.draft_rounds
    inside = tally.looping.draft_round_tokens / tally.looping.draft_rounds
    assert share * inside + (1 - share) * without == pytest.approx(tally.every.mean_accepted_length)
