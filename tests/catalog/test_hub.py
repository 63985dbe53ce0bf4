"""Downloads with the real hub library, in a process of its own, from a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_cli.catalog.hub import size_in_words
from tests.fakes.hub_server import HubServer

REPO = "owner/model"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": b"a" * 300_000,
    "model-00002-of-00002.safetensors": b"b" * 200_000,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}
    ).encode(),
}
OTHER = {
    "README.md": b"words",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"again",
    "onnx/config.json": b"{}",
    "original/params.json": b"{}",
}

PULL = """
import sys
from dspark_cli.catalog import hub
from dspark_cli.errors import CheckpointError
try:
    print(hub.fetch(sys.argv[1], tell=lambda words: print(words, file=sys.stderr), progress=False))
except CheckpointError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""
FIND = "import sys; from dspark_cli.catalog import hub; print(hub.find(sys.argv[1]))"


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer({REPO: {**FILES, **OTHER}}).running() as running:
        yield running


def python(code: str, server: HubServer, home: Path, repo: str = REPO, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": server.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1", **env,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code, repo], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_download_takes_what_a_checkpoint_needs_and_no_more(server: HubServer, tmp_path: Path) -> None:
    done = python(PULL, server, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert "500 kB" in done.stderr
    assert str(tmp_path) in done.stderr

    before = len(server.downloads())
    assert python(FIND, server, tmp_path).stdout.strip() == str(folder)
    assert python(PULL, server, tmp_path).returncode == 0
    assert len(server.downloads()) == before, "what is on disk is not fetched again"


def test_a_broken_connection_goes_on_where_it_broke(server: HubServer, tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    large = bytes(range(256)) * (24 * 2**12)  # 24 MiB: the library writes parts of 10 MiB
    server.repositories[REPO][name] = large
    server.broken = {name}
    done = python(PULL, server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / name).read_bytes() == large
    assert f"bytes={10 * 2**20}-" in [span for _, path, span in server.requests if path.endswith(name)]


def test_a_half_finished_download_is_not_taken_and_is_finished_later(server: HubServer, tmp_path: Path) -> None:
    whole = server.repositories[REPO]
    folder = Path(python(PULL, server, tmp_path).stdout.strip())
    lost = folder / "model-00002-of-00002.safetensors"
    lost.resolve().unlink()
    lost.unlink()
    assert python(FIND, server, tmp_path).stdout.strip() == "None"
    server.requests.clear()
    assert python(PULL, server, tmp_path).returncode == 0
    assert server.downloads() == [lost.name]
    assert lost.read_bytes() == whole[lost.name]


def test_nothing_on_disk_is_nothing_found(server: HubServer, tmp_path: Path) -> None:
    assert python(FIND, server, tmp_path).stdout.strip() == "None"
    assert python(FIND, server, tmp_path, repo="not/a/repo").stdout.strip() == "None"
    assert server.requests == []


def refused(server: HubServer, home: Path, repo: str = REPO, **env: str) -> str:
    done = python(PULL, server, home, repo, **env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_unknown_repository_is_told(server: HubServer, tmp_path: Path) -> None:
    assert "no repository owner/nothing" in refused(server, tmp_path, "owner/nothing")


def test_a_gated_repository_is_told_with_its_page(server: HubServer, tmp_path: Path) -> None:
    server.gated = {REPO}
    said = refused(server, tmp_path)
    assert "licence" in said
    assert f"{server.address}/{REPO}" in said
    assert "hf auth login" in said


def test_a_failing_hub_is_told(server: HubServer, tmp_path: Path) -> None:
    server.failing = {REPO}
    assert "the hub answered 500" in refused(server, tmp_path)


def test_being_offline_is_told(server: HubServer, tmp_path: Path) -> None:
    assert "HF_HUB_OFFLINE forbids" in refused(server, tmp_path, HF_HUB_OFFLINE="1")


def test_no_network_is_told(tmp_path: Path) -> None:
    nowhere = HubServer({}, address="http://127.0.0.1:9")
    assert "check the network" in refused(nowhere, tmp_path)


def test_no_room_is_told_before_anything_is_fetched(server: HubServer, tmp_path: Path) -> None:
    server.sizes = {"model-00001-of-00002.safetensors": 10**18}
    said = refused(server, tmp_path)
    assert "needs 1000000000 GB" in said
    assert "HF_HOME" in said
    assert server.downloads() == []


def test_a_repository_without_safetensors_is_told(server: HubServer, tmp_path: Path) -> None:
    server.repositories["owner/gguf"] = {"config.json": b"{}", "m.Q4_0.gguf": b"GGUF", "pytorch_model.bin": b"x"}
    said = refused(server, tmp_path, "owner/gguf")
    assert "no safetensors" in said
    assert "m.Q4_0.gguf" in said


def test_a_folder_that_cannot_be_written_is_told(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refused(server, tmp_path / "file")
    assert str(tmp_path / "file") in said
    assert "HF_HOME" in said


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (98_000_000, "98 MB"), (8 * 10**9, "8.0 GB")],
)
def test_sizes_read_as_people_say_them(count: int, words: str) -> None:
    assert size_in_words(count) == words
