"""A whole calibration of the tiny pair: fitted, checked, written, loaded again, and refused by any other pair."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dspark_cli.commands.process import run_program
from dspark_cli.engine.checkpoints.calibration_file import calibration_binding, calibration_values
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine, EngineOptions
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.events import Round, Start
from dspark_cli.training.calibrate import CalibrationPlan, LawReport, PromptSupply, as_calibration, calibrate
from dspark_cli.training.reliability_plot import check_plot, draw
from tests.engine.checkpoints.test_drafter_formats import edit_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"


def sums() -> list[str]:
    return [f"{a}+{b}=" for a in range(4, 40, 3) for b in range(7, 60, 9)]


def opened(drafter: Path | str | None, told: list[str] | None = None, target: Path = GOLDEN / "target") -> Engine:
    name = None if drafter is None else Path(drafter).name
    options = EngineOptions(target, "tiny", drafter, name, device="cpu", weight_cache=False)
    return Engine.open(options, (told if told is not None else []).append)


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def overconfident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden drafter with a confidence head that is three times as sure."""
    folder = Path(shutil.copytree(GOLDEN / "drafter-gated", tmp_path_factory.mktemp("d") / "sure"))
    tensors = load_file(folder / "model.safetensors")
    edit_tensors(folder, **{name: tensors[name] * 3 for name in tensors if name.startswith("confidence_head")})
    return folder


@pytest.fixture(scope="module")
def reports(overconfident: Path) -> list[LawReport]:
    told: list[tuple[str, int, int]] = []
    plan = CalibrationPlan(rounds=450, tokens=40, parallel=4)
    made = calibrate(opened(overconfident), PromptSupply(iter(sums())), plan, lambda *words: told.append(words))
    parts = {f"{law} replies for the {purpose}" for law in ("greedy", "sampling") for purpose in ("fit", "check")}
    assert {what for what, *_ in told} == parts
    assert all(done <= of == 450 for _, done, of in told)
    return made


def test_an_overconfident_head_is_cooled(reports: list[LawReport]) -> None:
    assert [report.law for report in reports] == ["greedy", "sampling"]
    for report in reports:
        error_before, error_after = report.mean("error_before"), report.mean("error_after")
        assert error_before is not None
        assert error_after is not None
        assert error_after < 0.7 * error_before
        assert report.temperatures[0] > 1.5
        assert report.checked.rounds >= 450
        for slot in report.slots:
            assert 0 <= slot.survived <= 1
            assert slot.rounds <= report.checked.rounds


def test_the_figures_are_plain_json(reports: list[LawReport]) -> None:
    figures = reports[1].figures()
    assert json.loads(json.dumps(figures)) == figures
    assert len(figures["slots"]) == 7
    assert figures["mean_perfect"] > 0


def test_the_command_writes_what_the_engine_then_uses(
    overconfident: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafter = Path(shutil.copytree(overconfident, tmp_path / "drafter"))
    prompts = tmp_path / "held-out.txt"
    prompts.write_text("\n".join(sums()))
    arguments = [
        "calibrate", "--model", str(GOLDEN / "target"), "--drafter", str(drafter), "--prompts", str(prompts),
        "--rounds", "200", "--tokens", "30", "--device", "cpu",
    ]  # fmt: skip
    assert run_program(arguments) == 0
    shown = capfd.readouterr().out
    for words in ("greedy: 20", "drawn at temperature 1: 20", "ECE before", "perfect", "AUC before", "mean"):
        assert words in shown
    values = json.loads((drafter / "calibration.json").read_text())
    assert values["block_size"] == 7
    told: list[str] = []
    engine = opened(drafter, told)
    assert told == []
    greedy, sampling = (values["temperatures"][law] for law in ("greedy", "sampling"))
    assert greedy != sampling
    for law, temperatures, made in (
        ("greedy", greedy, Sampling()),
        ("sampling", sampling, Sampling(temperature=1.0, seed=3)),
    ):
        start, rounds = _replied(engine, made)
        assert start.calibration is not None
        assert start.calibration.endswith(law)
        plain = {event.index: event for event in _replied(opened(overconfident), made)[1]}
        event = next(event for event in rounds if event.draft)
        assert event.confidence is not None
        bare = plain[event.index].confidence
        assert bare is not None
        logits = torch.tensor(bare, dtype=torch.float64).logit() / torch.tensor(temperatures, dtype=torch.float64)
        assert event.confidence == pytest.approx(logits.sigmoid().tolist(), abs=1e-6)


def _replied(engine: Engine, sampling: Sampling) -> tuple[Start, list[Round]]:
    request = engine.request(engine.raw_prompt("12+30="), sampling=sampling, max_new_tokens=20)
    events = list(engine.generate(request))
    assert isinstance(events[0], Start)
    return events[0], [event for event in events if isinstance(event, Round)]


@pytest.mark.parametrize("part", ["drafter", "target", "block size"])
def test_a_calibration_of_another_pair_is_left_aside_aloud(
    part: str, reports: list[LawReport], overconfident: Path, tmp_path: Path
) -> None:
    drafter = Path(shutil.copytree(overconfident, tmp_path / "drafter"))
    target = Path(shutil.copytree(GOLDEN / "target", tmp_path / "target"))
    binding = calibration_binding(target, drafter, 7)
    values: dict[str, Any] = calibration_values(binding, as_calibration(reports), {})
    (drafter / "calibration.json").write_text(json.dumps(values))
    told: list[str] = []
    assert _replied(opened(drafter, told, target), Sampling())[0].calibration is not None
    assert told == []
    if part == "block size":
        (drafter / "calibration.json").write_text(json.dumps({**values, "block_size": 6}))
    else:
        changed, name = {"drafter": (drafter, "norm.weight"), "target": (target, "model.norm.weight")}[part]
        edit_tensors(changed, **{name: torch.ones(64)})
    engine = opened(drafter, told, target)
    (note,) = told
    assert part in note
    assert "is not used" in note
    assert "dspark calibrate" in note
    start, rounds = _replied(engine, Sampling())
    assert start.calibration is None
    assert any(event.confidence for event in rounds)


def test_a_damaged_calibration_is_left_aside_aloud(overconfident: Path, tmp_path: Path) -> None:
    drafter = Path(shutil.copytree(overconfident, tmp_path / "drafter"))
    (drafter / "calibration.json").write_text("{}")
    told: list[str] = []
    opened(drafter, told)
    assert "lacks the key format" in told[0]


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    plan, passed = CalibrationPlan(rounds=200, tokens=20), lambda *_: None
    supply = PromptSupply(iter(sums()))
    for drafter in (None, "ngram"):
        with pytest.raises(UsageError, match=r"no drafter|no confidence head"):
            calibrate(opened(drafter), supply, plan, passed)
    with pytest.raises(DsparkError, match=r"1 prompts gave \d+ rounds"):
        calibrate(opened(GOLDEN / "drafter-gated"), PromptSupply(iter(sums()[:2])), plan, passed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "5"], "--rounds 5"),
        (["--tokens", "1"], "--tokens 1"),
        (["--temperature", "0"], "--temperature 0"),
        (["--plot", "x.pdf"], ".png"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        (["--drafter", "ngram"], "no confidence head"),
        (["--drafter", "none"], "no drafter"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_sentence(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--model", str(GOLDEN / "target"), "--drafter", str(GOLDEN / "drafter-rnn"), *arguments]
    assert run_program(["calibrate", *given]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not (GOLDEN / "drafter-rnn" / "calibration.json").exists()


def test_prompts_are_shared_out_evenly_and_made_once() -> None:
    numbers = count()
    supply = PromptSupply(str(number) for number in numbers)
    first, second = supply.part(0), supply.part(1)
    assert [next(first) for _ in range(3)] == [(0, "0"), (2, "2"), (4, "4")]
    assert next(second) == (1, "1")
    assert next(supply.part(0)) == (0, "0")
    assert next(numbers) == 5
    short = PromptSupply(iter(["a", "b", "c"]))
    assert [text for _, text in short.part(1)] == ["b"]
    assert [text for _, text in short.part(0)] == ["a", "c"]


def test_the_diagram_is_a_picture(reports: list[LawReport], tmp_path: Path) -> None:
    check_plot(tmp_path / "r.png")
    draw(reports, "tiny", tmp_path / "r.png")
    content = (tmp_path / "r.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000


def test_a_diagram_that_cannot_be_drawn_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "r.jpg", tmp_path / "nowhere" / "r.png"):
        with pytest.raises(UsageError, match="--plot"):
            check_plot(path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"matplotlib, which is not installed.*pip install"):
        check_plot(tmp_path / "r.png")
