"""Figures, words and JSON of a bench, from replies whose speeds are known."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from dspark_cli.bench.identity import Difference, Identity
from dspark_cli.bench.modes import PLAIN, Unavailable
from dspark_cli.bench.prompt_sets import KINDS
from dspark_cli.bench.report import aligned, conclusions, render
from dspark_cli.bench.result import ALL, BenchResult, Machine
from dspark_cli.bench.samples import Sample
from dspark_cli.bench.step_curve import StepCurve
from tests.bench.fakes import summary

SPEC, PEER = "ngram fixed:4", "transformers"
MACHINE = Machine(
    version="1.2.3", date="2026-01-02T03:04:05+00:00", cpu="Abacus 9000", cores=2, load=0.1, device="cpu", threads=2,
    torch="2.0", python="3.11.0", model="tiny", weights="Q4_1", dtype="float32", drafter="ngram",
    drafter_kind="ngram", block_size=4,
)  # fmt: skip


def _result(gains: dict[str, float], *, peer: float | None = None, noise: float = 0.01, each: int = 6) -> BenchResult:
    """Plain decoding at 20 tokens a second, the schedule ``gains[kind]`` times that, the peer ``peer`` times."""
    chance = random.Random(1)
    modes = (PLAIN, SPEC, *([PEER] if peer else []))
    result = BenchResult(MACHINE, max_new_tokens=11, modes=modes, planned=4 * each, quick=True)
    for number in range(each):
        for kind in KINDS:
            for mode in modes:
                gain = {PLAIN: 1.0, SPEC: gains.get(kind, gains.get(ALL, 1.0)), PEER: peer or 1.0}[mode]
                ms = 10 / (20 * gain * math.exp(chance.gauss(0, noise))) * 1e3
                folded = {PLAIN: summary((0, 0)), SPEC: summary((4, 4), (4, 2), (0, 0)), PEER: None}[mode]
                result.samples.append(Sample(mode, f"{kind}-{number}", kind, tuple(range(11)), ms, 40.0, folded))
    return result


def _words(result: BenchResult) -> str:
    return " ".join(conclusions(result))


def test_ratios_by_kind_and_over_all() -> None:
    result = _result({"copying": 2.0, ALL: 1.0})
    copying, whole = result.compare(SPEC, PLAIN, "copying"), result.compare(SPEC, PLAIN)
    assert copying is not None
    assert whole is not None
    assert copying.ratio.ratio == pytest.approx(2.0, rel=0.03)
    assert (copying.ratio.pairs, copying.ratio.verdict) == (6, "faster")
    assert whole.ratio.ratio == pytest.approx(2 ** (1 / 4), rel=0.03)
    assert whole.ratio.pairs == 24
    assert [(c.mode, c.kind) for c in result.comparisons] == [(SPEC, kind) for kind in (*KINDS, ALL)]


def test_replies_of_one_token_make_no_pair() -> None:
    result = _result({ALL: 1.5})
    result.samples.append(Sample(PLAIN, "short", "chat", (1,), 0.0, 40.0, summary()))
    result.samples.append(Sample(SPEC, "short", "chat", (1,), 0.0, 40.0, summary()))
    compared = result.compare(SPEC, PLAIN, "chat")
    assert compared is not None
    assert compared.ratio.pairs == 6


def test_a_losing_schedule_is_called_losing() -> None:
    words = _words(_result({ALL: 0.8}))
    assert "it LOSES here" in words
    assert "Use --schedule off." in words


def test_a_gain_is_called_a_gain() -> None:
    words = _words(_result({ALL: 1.5}))
    assert "1.5" in words
    assert "it gains here" in words
    assert "off" not in words
    assert "By kind" not in words, "it gains on all"


def test_a_gain_names_the_kinds_that_lose() -> None:
    assert "It loses on chat: use --schedule off there." in _words(_result({"chat": 0.9, ALL: 2.0}))


def test_a_gain_names_the_kinds_that_make_it() -> None:
    assert "it gains here. By kind the gain is beyond doubt on copying." in _words(_result({"copying": 9.0, ALL: 1.0}))


def test_a_busy_machine_is_said() -> None:
    result = _result({ALL: 1.0}, each=1)
    assert "busy" not in render(result)
    result.machine = replace(MACHINE, load=1.5)
    assert "busy when this began (load 1.5 on 2 cores)" in render(result)
    result.machine = replace(MACHINE, load=None)
    assert "busy" not in render(result)


def test_a_loss_names_the_kinds_that_gain() -> None:
    assert "It gains on copying alone. Use --schedule off." in _words(_result({"copying": 1.1, ALL: 0.6}))


def test_noise_is_no_verdict() -> None:
    words = _words(_result({ALL: 1.0}, noise=0.2))
    assert "no difference is seen" in words
    assert "As no gain was found, --schedule off is the safe choice." in words
    assert "gains" not in words
    assert "LOSES" not in words
    few = _words(_result({ALL: 1.0}, noise=0.2, each=2))
    assert "8 prompts cannot tell; more may. Until then --schedule off is the safe choice." in few


def test_one_pair_is_no_verdict() -> None:
    result = _result({ALL: 3.0}, each=1)
    result.samples = result.samples[:2]
    assert "(one pair): over all prompts no difference is seen" in _words(result)


def test_the_peer_is_seen_from_our_side() -> None:
    words = _words(_result({ALL: 1.2}, peer=0.5))
    assert "Plain decoding here makes 2.0" in words
    assert "of transformers (1.9" in words or "of transformers (2.0" in words
    assert "plain decoding here is faster" in words
    assert "plain decoding here is SLOWER than transformers" in _words(_result({ALL: 1.2}, peer=1.5))


def test_the_whole_page() -> None:
    result = _result({"copying": 2.0, ALL: 0.9}, peer=0.5)
    result.steps = StepCurve(256, (1, 8), ((10.0, 11.0, 10.5), (15.0, 16.5, 16.0)))
    tie = Identity(SPEC, PLAIN, 24, 1e-4, (Difference("chat-1", 4, 7, 8, 3e-5),))
    wrong = Identity(
        PEER, PLAIN, 24, 1e-3, (Difference("math-2", 0, 7, 8, 0.5), Difference("math-3", 9, 7, None, None))
    )
    result.identities = [tie, wrong, Identity(SPEC, PLAIN, 5, 1e-4)]
    result.unavailable = [Unavailable("draft model", "none was given")]
    result.stopped = "time"
    result.planned = 40
    result.left_out = ["long-one"]
    page = render(result)
    lines = page.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert lines[0] == "dspark 1.2.3 · tiny (Q4_1, computed in float32) · drafter ngram, blocks of 4"
    assert lines[1].startswith("Abacus 9000, 2 cores · cpu, 2 threads · torch 2.0 · 2026")
    for part in (
        "to 24 prompts", "The time was up after 24 of 40 prompts.", "left out: long-one.",
        "12 of 18 rounds", "accepted by position",
        "rows", "1.50×", "(3 pairs)", "256 tokens in the cache",
        "different in 1 of 24 replies, each where two tokens tie within rounding: chat-1 at token 5 (gap 3.0e-05).",
        "rounding does NOT explain it: math-2 at token 1 (gap 5.0e-01), math-3 at token 10 (no gap).",
        "the same in all 5 replies.", "draft model: not measured, none was given.",
    ):  # fmt: skip
        assert part in page, part
    copying = next(line for line in lines if line.startswith(SPEC) and " copying " in line)
    assert copying.split()[2:5] == ["copying", "6", copying.split()[4]]
    assert " faster " in copying
    assert "\x1b" not in page


def test_acceptance_by_position_in_the_table() -> None:
    page = render(_result({ALL: 1.0}, each=2))
    drafts = [line for line in page.splitlines() if "rounds" in line and line.startswith(SPEC)]
    # Each reply: one draft of four stands, one is rejected after two, so slots 1 and 2 always stand, slot 3 half.
    assert " 4.00  1.0 1.0 .50 1.0  " in drafts[-1]
    assert "16 of 24 rounds" in drafts[-1]


def test_json_holds_the_figures_and_the_raw_replies() -> None:
    result = _result({ALL: 1.5}, peer=0.5, each=2)
    result.steps = StepCurve(256, (1, 8), ((10.0, 11.0), (15.0, 16.5)))
    result.identities = [Identity(SPEC, PLAIN, 8, 1e-4)]
    result.stopped = "interrupted"
    body = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert body["bench"] == 1
    for key in (
        "version",
        "date",
        "cpu",
        "device",
        "threads",
        "cores",
        "load",
        "torch",
        "python",
        "model",
        "weights",
        "dtype",
    ):
        assert body[key] == vars(MACHINE)[key]
    assert (body["quick"], body["stopped"], body["lossless"], body["max_new_tokens"]) == (True, "interrupted", True, 11)
    assert body["prompts"] == {"planned": 8, "answered": 8, "too_long": []}
    assert [mode["mode"] for mode in body["modes"]] == [PLAIN, SPEC, PEER]
    assert list(body["modes"][0]["kinds"]) == [*KINDS, ALL]
    figures = body["modes"][1]["kinds"][ALL]
    assert (figures["replies"], figures["tokens"]) == (8, 88)
    assert figures["tokens_per_second"]["median"] == pytest.approx(30, rel=0.05)
    assert figures["first_token_ms"]["median"] == 40.0
    assert figures["drafts"]["accepted_length"] == 4.0
    assert figures["drafts"]["acceptance"] == [1.0, 1.0, 0.5, 1.0]
    assert body["modes"][2]["kinds"][ALL]["drafts"] is None
    assert {(c["mode"], c["kind"]) for c in body["comparisons"]} == {
        (mode, kind) for mode in (SPEC, PEER) for kind in (*KINDS, ALL)
    }
    assert set(body["comparisons"][0]) == {
        "mode", "against", "kind", "ratio", "low", "high", "pairs", "confidence", "verdict",
    }  # fmt: skip
    assert body["identity"][0]["verdict"] == "same"
    assert body["steps"]["ratio_to_one_row"][1]["ratio"] == pytest.approx(1.5)
    assert len(body["replies"]) == 24
    assert set(body["replies"][0]) == {
        "mode", "prompt", "kind", "tokens", "tokens_per_second", "decode_ms", "first_token_ms", "output_ids", "stats",
    }  # fmt: skip


def test_only_our_own_differences_make_it_lossy() -> None:
    result = _result({ALL: 1.0}, peer=1.0, each=1)
    far = (Difference("chat-0", 0, 1, 2, 0.5),)
    result.identities = [Identity(PEER, PLAIN, 4, 1e-3, far)]
    assert result.lossless
    result.identities = [Identity(SPEC, PLAIN, 4, 1e-4, far)]
    assert not result.lossless


def test_nothing_measured_is_said() -> None:
    result = BenchResult(MACHINE, max_new_tokens=11, modes=(PLAIN,), planned=4, stopped="interrupted")
    assert "Nothing was measured." in render(result)
    assert "Interrupted after 0 of 4 prompts." in render(result)
    assert json.loads(json.dumps(result.to_dict()))["replies"] == []


def test_columns_are_aligned() -> None:
    assert aligned([("a", "bb", ""), ("ccc", "d", "")], right=(1,)) == "a    bb\nccc   d"
