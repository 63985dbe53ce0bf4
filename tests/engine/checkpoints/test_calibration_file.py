"""A calibration belongs to one pair, and the fingerprint tells pairs apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.checkpoints.calibration_file import Binding, calibration_values, matching_calibration
from dspark_cli.engine.checkpoints.fingerprint import fingerprint
from dspark_cli.engine.model_config import Calibration
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.tiny_models import GOLDEN

BINDING = Binding("sha256:t", "sha256:d", 3)
MADE = Calibration((1.0, 2.0, 0.5), (3.0, 1.0, 1.0))
WHERE = Path("folder")


def test_what_is_written_is_read() -> None:
    found = matching_calibration(calibration_values(BINDING, MADE, {"made_with": "x"}), BINDING, WHERE)
    assert (found.greedy, found.sampling) == (MADE.greedy, MADE.sampling)
    assert found.name.startswith("calibration.json ")
    again = matching_calibration(calibration_values(BINDING, MADE, {"made_with": "y"}), BINDING, WHERE)
    assert again == found
    half = Calibration(None, MADE.sampling)
    other = matching_calibration(calibration_values(BINDING, half, {}), BINDING, WHERE)
    assert other.greedy is None
    assert other.name != found.name


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (Binding("sha256:T", "sha256:d", 3), "another target"),
        (Binding("sha256:t", "sha256:D", 3), "another drafter"),
        (Binding("sha256:t", "sha256:d", 4), "a block size of 3"),
    ],
)
def test_another_pair_is_refused(binding: Binding, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        matching_calibration(calibration_values(BINDING, MADE, {}), binding, WHERE)
    assert "calibrate" in caught.value.way_out


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": None}, {"target": 3}, {"drafter": None}, {"block_size": "3"},
        {"temperatures": [1.0]}, {"temperatures": {"greedy": [1.0, 2.0]}}, {"temperatures": {"greedy": [1, 2, 0]}},
        {"temperatures": {"sampling": [1, 2, -1]}}, {"temperatures": {"sampling": [1, 2, True]}},
        {"temperatures": {"sampling": [1, 2, float("nan")]}}, {"temperatures": {"sampling": [1, 2, float("inf")]}},
        {"temperatures": {"sampling": 2}},
    ],
)  # fmt: skip
def test_what_is_no_calibration_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        matching_calibration({**calibration_values(BINDING, MADE, {}), **change}, BINDING, WHERE)


def test_a_fingerprint_is_of_the_content_alone(tmp_path: Path) -> None:
    first = fingerprint(GOLDEN / "drafter-rnn")
    copied = Path(shutil.copytree(GOLDEN / "drafter-rnn", tmp_path / "copy"))
    (copied / "calibration.json").write_text("{}")
    (copied / "model.safetensors").touch()
    assert fingerprint(copied) == first
    assert fingerprint(GOLDEN / "drafter-gated") != first
    (copied / "config.json").write_text(
        (copied / "config.json").read_text().replace('"block_size": 7', '"block_size": 6')
    )
    assert fingerprint(copied) != first


@given(data=st.data())
def test_any_change_within_a_small_file_is_seen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=1, max_size=200))
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("f") / "m.gguf"
    path.write_bytes(content)
    before = fingerprint(path)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    assert fingerprint(path) != before


def test_a_large_file_is_sampled_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    size = 5_000_003
    path.write_bytes(bytes(size))
    before = fingerprint(path)
    for place in (0, 4095, size - 1, size - 4096):
        content = bytearray(size)
        content[place] = 1
        path.write_bytes(content)
        assert fingerprint(path) != before
    path.write_bytes(bytes(size + 1))
    assert fingerprint(path) != before
    # All weights move in training; a quarter of them is more than enough to be seen.
    content = bytearray(size)
    content[2_000_000:3_250_000] = b"\x01" * 1_250_000
    path.write_bytes(content)
    assert fingerprint(path) != before
