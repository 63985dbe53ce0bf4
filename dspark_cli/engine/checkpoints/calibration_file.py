"""calibration.json beside a drafter: temperatures of its confidences, bound to the pair that they were fitted on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dspark_cli.engine.checkpoints.fields import Fields
from dspark_cli.engine.checkpoints.fingerprint import fingerprint
from dspark_cli.engine.model_config import Calibration
from dspark_cli.errors import CheckpointError

NAME: Final = "calibration.json"
FORMAT: Final = 1
_WAY_OUT: Final = "run dspark calibrate for this pair"


@dataclass(frozen=True)
class Binding:
    """What a calibration belongs to: fingerprints of the weights, and the number of slots."""

    target: str
    drafter: str
    block_size: int


def calibration_binding(target: Path, drafter: Path, block_size: int) -> Binding:
    """What a calibration of the pair in the files or folders ``target`` and ``drafter`` is bound to.

    Raises:
        CheckpointError: a file of the two cannot be read.
    """
    try:
        return Binding(fingerprint(target), fingerprint(drafter), block_size)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read ({error.strerror})", "check its permissions") from error


def calibration_values(binding: Binding, calibration: Calibration, notes: Mapping[str, Any]) -> dict[str, Any]:
    """What calibration.json holds; ``notes`` are for people, under keys of their own."""
    return {
        "format": FORMAT,
        "target": binding.target,
        "drafter": binding.drafter,
        "block_size": binding.block_size,
        "temperatures": {
            "greedy": None if calibration.greedy is None else list(calibration.greedy),
            "sampling": None if calibration.sampling is None else list(calibration.sampling),
        },
        **notes,
    }


def matching_calibration(values: Mapping[str, Any], binding: Binding, folder: Path) -> Calibration:
    """The calibration in a parsed calibration.json of ``folder``.

    Raises:
        CheckpointError: it was made for another target, drafter or block size, or is not what such a file holds.
    """
    where = str(folder / NAME)
    fields = Fields(values, where)
    if fields.whole("format") != FORMAT:
        raise CheckpointError(f"{where} is of the format {fields.whole('format')}, and {FORMAT} is read", _WAY_OUT)
    if fields.whole("block_size") != binding.block_size:
        raise _made_for(where, f"a block size of {fields.whole('block_size')}")
    for part, found in (("drafter", binding.drafter), ("target", binding.target)):
        if fields.text(part) != found:
            raise _made_for(where, f"another {part}")
    known = Fields(fields.section("temperatures"), f"the temperatures of {where}")
    # The name is the same as long as the meaning is: written anew with the same values, it stays.
    name = hashlib.sha256(json.dumps(known.values, sort_keys=True).encode()).hexdigest()[:12]
    return Calibration(
        _temperatures(known, "greedy", binding.block_size),
        _temperatures(known, "sampling", binding.block_size),
        f"{NAME} {name}",
    )


def _made_for(where: str, other: str) -> CheckpointError:
    return CheckpointError(f"{where} was made for {other} and is not used", _WAY_OUT)


def _temperatures(fields: Fields, key: str, count: int) -> tuple[float, ...] | None:
    found = fields.values.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != count or not all(_possible(value) for value in found):
        raise fields.wrong(key, f"a list of {count} numbers above 0")
    return tuple(float(value) for value in found)


def _possible(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
