from __future__ import annotations

from pathlib import Path

import pytest

from dspark_cli import paths


def test_places_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert paths.cache_dir() == tmp_path / "elsewhere" / "dspark"


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_places_fall_back_to_the_home_folder(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert paths.config_dir() == tmp_path / ".config" / "dspark"
    assert paths.cache_dir() == tmp_path / ".cache" / "dspark"
    assert paths.data_dir() == tmp_path / ".local" / "share" / "dspark"
    assert paths.state_dir() == tmp_path / ".local" / "state" / "dspark"


def test_writing_replaces_the_whole_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    paths.write_atomically(path, b"one")
    paths.write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with paths.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
