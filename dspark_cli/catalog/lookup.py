"""From what people type after ``--model`` and ``--drafter`` to a place on disk."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dspark_cli.errors import CheckpointError, UsageError, nearest

DEMO = "smollm2-135m"
NGRAM = "ngram"
NO_DRAFTER = "none"

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Find = Callable[[str], "Path | None"]
Fetch = Callable[[str], Path]


@dataclass(frozen=True)
class Entry:
    """One model or drafter of the catalogue.

    ``drafter`` names the drafter of a model. ``package`` and ``file`` say which file of which installed Python
    package holds it, ``install`` how to get that package.
    """

    name: str
    title: str
    repo: str
    gated: bool = False
    drafter: str | None = None
    package: str | None = None
    file: str | None = None
    install: str | None = None


@dataclass(frozen=True)
class Catalog:
    """Every entry by its name."""

    models: Mapping[str, Entry]
    drafters: Mapping[str, Entry]


@dataclass(frozen=True)
class Pair:
    """A target and its drafter, on disk.

    ``drafter`` is a folder, ``"ngram"``, or None for plain decoding; ``chosen`` says in words why a drafter that
    nobody named was taken, and is empty where one was named.
    """

    model: Path
    model_name: str
    drafter: Path | str | None
    drafter_name: str | None
    chosen: str = ""


@cache
def catalog() -> Catalog:
    """The catalogue that comes with the program."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = importlib.resources.files("dspark_cli.catalog").joinpath("models.toml").read_text(encoding="utf-8")
    tables = toml.loads(text)
    return Catalog(
        {name: Entry(name, **values) for name, values in tables["models"].items()},
        {name: Entry(name, **values) for name, values in tables["drafters"].items()},
    )


def resolve(model: str | None, drafter: str | None, *, find: Find, fetch: Fetch) -> Pair:
    """The pair that ``model`` and ``drafter`` name.

    Args:
        model: a folder, a .gguf file, a catalogue name, an owner/repo of the hub; None means the demo model.
        drafter: the same but for the file, ``ngram`` or ``none``; None means the catalogue's drafter for the model
            if it is on disk, else ``ngram``.
        find: the folder of a hub repository that is whole on disk, or None.
        fetch: downloads a hub repository and returns its folder.

    Raises:
        UsageError: a name that nothing answers to.
        CheckpointError: a file or folder that is missing, or the package of the demo model.
    """
    known = catalog()
    path, name, entry = _model(model or DEMO, known.models, find, fetch)
    if drafter is None:
        return _default_drafter(path, name, entry, known, find)
    if drafter.lower() == NO_DRAFTER:
        return Pair(path, name, None, None)
    if drafter.lower() == NGRAM:
        return Pair(path, name, NGRAM, NGRAM)
    folder, drafter_name = _drafter(drafter, known.drafters, find, fetch)
    return Pair(path, name, folder, drafter_name)


def _default_drafter(path: Path, name: str, entry: Entry | None, known: Catalog, find: Find) -> Pair:
    if entry is not None and entry.drafter is not None:
        drafter = known.drafters[entry.drafter]
        folder = find(drafter.repo)
        if folder is not None:
            return Pair(path, name, folder, drafter.name, f"the catalogue's drafter for {entry.name}, {drafter.name}")
        return Pair(path, name, NGRAM, NGRAM, f"prompt lookup (--drafter {drafter.name} downloads the trained one)")
    return Pair(path, name, NGRAM, NGRAM, "prompt lookup, as the catalogue has no trained drafter for this model")


def _model(text: str, models: Mapping[str, Entry], find: Find, fetch: Fetch) -> tuple[Path, str, Entry | None]:
    local = Path(text).expanduser()
    if local.is_file():
        return local, local.stem, None
    if _is_checkpoint_folder(local):
        return _only_gguf(local), local.resolve().name, None
    if text.lower() in models:
        entry = models[text.lower()]
        return _packaged(entry) or find(entry.repo) or fetch(entry.repo), entry.name, entry
    if _looks_like_path(text) or local.is_dir():
        raise _missing_path(local, "--model")
    if _REPO.fullmatch(text):
        listed = next((entry for entry in models.values() if entry.repo.lower() == text.lower()), None)
        repo = listed.repo if listed else text
        return find(repo) or fetch(repo), repo, listed
    raise _unknown(text, "--model", models)


def _drafter(text: str, drafters: Mapping[str, Entry], find: Find, fetch: Fetch) -> tuple[Path, str]:
    local = Path(text).expanduser()
    if local.is_file() or _is_checkpoint_folder(local):
        return local, local.resolve().name
    if text.lower() in drafters:
        entry = drafters[text.lower()]
        return find(entry.repo) or fetch(entry.repo), entry.name
    if _looks_like_path(text) or local.is_dir():
        raise _missing_path(local, "--drafter")
    if _REPO.fullmatch(text):
        return find(text) or fetch(text), text
    raise _unknown(text, "--drafter", [*drafters, NGRAM, NO_DRAFTER])


def _is_checkpoint_folder(path: Path) -> bool:
    return path.is_dir() and ((path / "config.json").exists() or bool(list(path.glob("*.gguf"))))


def _only_gguf(folder: Path) -> Path:
    """``folder`` itself, or its .gguf file where it holds nothing but one."""
    if (folder / "config.json").exists():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UsageError(f"the folder {folder} holds {len(files)} .gguf files ({names})", "give one of them to --model")
    return files[0]


def _looks_like_path(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..") or text.endswith((".gguf", "/"))


def _packaged(entry: Entry) -> Path | None:
    """The file of an entry that comes in a Python package, which is found but never imported."""
    if entry.package is None or entry.file is None:
        return None
    spec = importlib.util.find_spec(entry.package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / entry.file).is_file():
            return path
    raise CheckpointError(f"the file of {entry.name} is not on this machine", f"get it with {entry.install}")


def _missing_path(path: Path, flag: str) -> CheckpointError:
    if path.is_dir():
        return CheckpointError(
            f"the folder {path} holds no config.json and no .gguf file",
            f"give {flag} the folder of a Hugging Face checkpoint or a .gguf file",
        )
    if path.exists():
        return CheckpointError(
            f"{flag} {path} is neither a folder nor a file with contents to read",
            f"give {flag} the folder of a Hugging Face checkpoint or a .gguf file",
        )
    try:
        beside = [item.name for item in path.parent.iterdir()]
    except OSError:
        beside = []
    near = {name.lower(): name for name in beside}.get(nearest(path.name, [name.lower() for name in beside]), "")
    way_out = f"did you mean {path.parent / near}?" if near else "check the path"
    return CheckpointError(f"{flag} {path} does not exist", way_out)


def _unknown(text: str, flag: str, names: Iterable[str]) -> UsageError:
    names = list(names)
    near = nearest(text, names)
    way_out = f"did you mean {near}?" if near else f"known names are {', '.join(names)}"
    return UsageError(f"{flag} {text!r} is no file, no folder, no owner/repo of the hub and no known name", way_out)
