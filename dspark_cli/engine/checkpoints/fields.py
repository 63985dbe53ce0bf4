"""Typed reading of a config's keys, where every wrong value becomes one sentence that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dspark_cli.errors import CheckpointError

_Default = TypeVar("_Default")
REQUIRED: Any = object()
# Far above any real model: a damaged number of layers must not fill the memory with their names.
MOST_LAYERS = 1000


@dataclass(frozen=True)
class Fields:
    """Keys of one config. ``where`` names the file in messages; null counts as absent, as it does in config.json."""

    values: Mapping[str, Any]
    where: str

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """The error for a value that is not what ``expected`` says."""
        return CheckpointError(
            f"{self.where} gives {key} = {_shown(self.values.get(key))}, and {expected} is needed",
            "download the model again or correct the file",
        )

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.where} lacks the key {key}", "download the model again or correct the file")
        return default

    def whole(self, key: str, default: _Default = REQUIRED, least: int = 1, most: int | None = None) -> int | _Default:
        """An integer of at least ``least`` and at most ``most``."""
        value = self._get(key, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"an integer of at least {least}")
        if most is not None and value > most:
            raise self.wrong(key, f"an integer of at most {most}")
        return value

    def number(self, key: str, default: _Default = REQUIRED) -> float | _Default:
        """A finite number."""
        value = self._get(key, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(key, "a number")
        return float(value)

    def positive(self, key: str, default: float = REQUIRED) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, "a number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = REQUIRED) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty where the key is absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts")
        return value

    def section(self, key: str) -> Mapping[str, Any]:
        """An object within the config; empty where the key is absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return value

    def wholes(self, key: str, default: tuple[int, ...] = REQUIRED, least: int = 0) -> tuple[int, ...]:
        """A list of integers of at least ``least``, or one alone."""
        value = self._get(key, default)
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < least for item in values):
            raise self.wrong(key, f"a list of integers of at least {least}")
        return tuple(values)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file at ``path``.

    Raises:
        CheckpointError: the file is missing, unreadable, no JSON, or no object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}", "check the path, or download the model again") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})", "check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error})", "download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object", "download it again")
    return value
