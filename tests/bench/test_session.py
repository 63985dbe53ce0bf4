"""A whole bench on the tiny golden pair, and what an interruption or a lossy mode leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dspark_cli.bench.modes import PLAIN, EngineMode, Mode, Task, Unavailable
from dspark_cli.bench.peers import open_peers
from dspark_cli.bench.prompt_sets import BenchPrompt
from dspark_cli.bench.report import render
from dspark_cli.bench.result import ALL, BenchResult
from dspark_cli.bench.samples import DraftTotals, Sample
from dspark_cli.bench.session import BenchPlan, cpu_name, run_bench
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.errors import UsageError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "qwen3-tiny"
TEXTS = ("12+30=", "3,5,7,", "the small cat ", "0,4,8,12,", "7+8=15;9+9=", "a red bird sings and then the ")
PROMPTS = tuple(BenchPrompt(f"p{i}", "words" if "a" in text else "sums", text) for i, text in enumerate(TEXTS))
PLAN = BenchPlan(PROMPTS, max_new_tokens=24, step_repeats=6, step_depth=40)
SPEC = "dspark fixed:7"


def _open(drafter: str | None) -> Engine:
    where = {None: None, "ngram": "ngram"}.get(drafter, GOLDEN / str(drafter))
    return Engine.open(EngineOptions(GOLDEN / "target", "tiny", where, drafter, device="cpu", weight_cache=False))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = _open("drafter-vanilla")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def result(engine: Engine) -> BenchResult:
    said: list[str] = []
    found = run_bench(
        engine, PLAN, open_others=lambda: open_peers(("transformers",), engine.pair, said.append), tell=said.append
    )
    assert "building the transformers model from the same weights" in said
    assert f"reply 2 of 18: {SPEC}, p0" in said
    return found


def test_every_mode_answers_every_prompt(result: BenchResult) -> None:
    assert result.modes == (PLAIN, SPEC, "transformers")
    assert (result.complete(), result.stopped, result.unavailable, result.left_out) == (6, "", [], [])
    for mode in result.modes:
        assert [sample.prompt for sample in result.of(mode)] == [prompt.id for prompt in PROMPTS]
        assert all(sample.tokens_per_second and sample.first_token_ms > 0 for sample in result.of(mode))


def test_all_give_the_same_greedy_tokens(result: BenchResult) -> None:
    assert [(item.mode, item.verdict, item.replies) for item in result.identities] == [
        (SPEC, "same", 6),
        ("transformers", "same", 6),
    ]
    assert result.lossless


def test_drafts_are_counted(result: BenchResult) -> None:
    totals = DraftTotals.of(result.of(SPEC))
    tokens = sum(len(sample.output_ids) for sample in result.of(SPEC))
    assert totals.draft_rounds > 0
    # Every token but each reply's first comes out of a round: the accepted ones, and one more a round
    # (less where a stop or the limit cut).
    assert tokens - 6 <= totals.accepted + totals.rounds
    assert totals.mean_accepted_length is not None
    assert totals.mean_accepted_length > 1.5, "the golden drafter is trained"
    assert DraftTotals.of(result.of(PLAIN)).drafted == 0
    assert sum(totals.time_split.values()) == pytest.approx(1.0)


def test_each_reply_reads_its_whole_prompt(result: BenchResult) -> None:
    assert all(s.summary.cached_tokens == 0 for s in result.samples if s.summary is not None)


def test_speeds_are_paired_and_steps_timed(result: BenchResult) -> None:
    compared = result.compare(SPEC, PLAIN)
    assert compared is not None
    assert compared.ratio.pairs == 6
    assert {item.kind for item in result.comparisons} == {"sums", "words", ALL}
    assert result.steps is not None
    assert (result.steps.depth, result.steps.widths) == (40, (1, 2, 4, 8))
    assert all(len(times) == 6 and min(times) > 0 for times in result.steps.times)
    assert "tiny (f32, computed in float32) · drafter drafter-vanilla, blocks of 7" in render(result)


def test_without_a_drafter_speculation_is_named_as_missing() -> None:
    opened = _open(None)
    found = run_bench(opened, replace(PLAN, prompts=PROMPTS[:1]))
    opened.close()
    assert found.modes == (PLAIN,)
    assert found.unavailable == [Unavailable("speculative", "there is no drafter")]
    page = render(found)
    assert "no drafter\n" in page
    assert "speculative: not measured, there is no drafter." in page


def test_ngram_and_a_schedule_asked_for() -> None:
    opened = _open("ngram")
    found = run_bench(opened, replace(PLAN, prompts=PROMPTS[:2]), schedule="fixed:2")
    opened.close()
    assert found.modes == (PLAIN, "ngram fixed:2")
    assert found.lossless
    drafts = DraftTotals.of(found.of("ngram fixed:2"))
    assert 0 < drafts.verified <= 2 * drafts.draft_rounds


def test_a_schedule_that_does_not_suit_is_refused() -> None:
    opened = _open("ngram")
    with pytest.raises(UsageError, match="confidence"):
        run_bench(opened, PLAN, schedule="threshold:0.5")
    opened.close()


@dataclass
class OtherMode:
    """Plain decoding under another name; ``wrong`` changes its last token, the ``stop``-th reply is interrupted."""

    plain: EngineMode
    name: str = "other"
    wrong: bool = False
    stop: int = 0
    replies: int = 0

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        self.replies += 1
        if self.replies == self.stop:
            raise KeyboardInterrupt
        sample = replace(self.plain.reply(task, max_new_tokens), mode=self.name)
        if self.wrong:
            ids = (*sample.output_ids[:-1], (sample.output_ids[-1] + 30) % 64)
            sample = replace(sample, output_ids=ids)
        return sample


def _with(engine: Engine, **changes: int | bool) -> BenchResult:
    other: Mode = OtherMode(EngineMode(PLAIN, engine, "off"), **changes)  # type: ignore[arg-type]
    return run_bench(engine, PLAN, open_others=lambda: ([other], []))


def test_a_wrong_token_is_found(engine: Engine) -> None:
    found = _with(engine, wrong=True)
    verdicts = {item.mode: item.verdict for item in found.identities}
    assert verdicts == {SPEC: "same", "other": "different"}
    assert not found.lossless
    assert "rounding does NOT explain it: p0 at token 24" in render(found)


@pytest.mark.parametrize(("stop", "samples", "complete"), [(4, 6, 2), (1, 0, 0)])
def test_interrupted_it_has_what_was_measured(engine: Engine, stop: int, samples: int, complete: int) -> None:
    """A mode warms up with its first reply; the third turn is turned round, so the other mode comes first in it."""
    found = _with(engine, stop=stop)
    assert found.stopped == "interrupted"
    assert (len(found.samples), found.complete()) == (samples, complete)
    assert found.steps is not None
    assert f"Interrupted after {complete} of 6 prompts." in render(found)
    # The engine is as good as new.
    assert run_bench(engine, replace(PLAN, prompts=PROMPTS[:1])).lossless


def test_an_early_end_is_said(engine: Engine) -> None:
    found = run_bench(engine, replace(PLAN, deadline=0.0))
    assert (found.stopped, found.complete()) == ("time", 1)
    assert "The time was up after 1 of 6 prompts." in render(found)


def test_prompts_that_do_not_fit_are_named(engine: Engine) -> None:
    long = BenchPrompt("long", "sums", "1+" * 300)
    found = run_bench(engine, replace(PLAN, prompts=(long, PROMPTS[0])))
    assert (found.left_out, found.planned) == (["long"], 1)
    assert "Too long for the context and left out: long." in render(found)
    with pytest.raises(UsageError, match="no prompt of the bench leaves room"):
        run_bench(engine, replace(PLAN, prompts=(long,)))


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Abacus 9000\n", encoding="utf-8")
    assert cpu_name(info) == "Abacus 9000"
    assert cpu_name(tmp_path / "none")
