"""Where files live (XDG base directories) and how one is replaced without ever being half written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_APPLICATION = "dspark"


def _place(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification has relative values ignored.
    base = Path(value) if os.path.isabs(value) else Path.home() / default
    return base / _APPLICATION


def config_dir() -> Path:
    """Settings that the user edits; not created here."""
    return _place("XDG_CONFIG_HOME", ".config")


def cache_dir() -> Path:
    """Files that can be made again; not created here."""
    return _place("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """Files that the user would miss, such as chats; not created here."""
    return _place("XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """Files that outlive a run but are not worth a backup, such as line history; not created here."""
    return _place("XDG_STATE_HOME", ".local/state")


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path beside ``path``; what was written there takes its place when the block ends well.

    The folder is created. After an exception the temporary file is gone and ``path`` is as it was. ``durable``
    waits for the disk, so that a power cut cannot leave an empty file; a large cache can do without.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` by ``content``; readers see the old or the new, never a part.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)
