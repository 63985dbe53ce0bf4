"""Recorded traces, and step curves from files, as input of the simulator."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from dspark_cli.bench.simulator import Rounds
from dspark_cli.engine.scheduler.sps_curve import SpsCurve
from dspark_cli.errors import UsageError
from dspark_cli.events import Curve, Round, Start, from_json

FEWEST_TIMES = 5  # rounds of one width that a step time is made from


@dataclass(frozen=True)
class Recording:
    """A trace as the simulator needs it.

    ``curve`` is the last one in the trace, else made from its rounds; None where they had too few widths.
    ``left_out`` counts rounds that did not draft: they tell nothing of what would have stood.
    """

    rounds: Rounds
    curve: SpsCurve | None
    left_out: int


def read_trace(path: Path, seed: int = 0) -> Recording:
    """The rounds of a JSONL trace, such as ``dspark run --json`` writes.

    What was not verified cannot be known. Where all verified tokens of a round stood and the draft was longer, the
    rest is drawn from its confidences, or from how often the slot stood in this trace; ``Rounds.unknown`` marks it.

    Raises:
        UsageError: the file cannot be read, a line is no event, or no round has a draft.
    """
    rounds: list[Round] = []
    curve: SpsCurve | None = None
    block_size = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            event = from_json(line)
        except ValueError as error:
            raise UsageError(f"line {number} of {path} is no event of a trace ({error})") from error
        if isinstance(event, Round) and event.anchor is not None:
            rounds.append(event)
        elif isinstance(event, Curve):
            curve = SpsCurve.flat(event.verify_ms, event.draft_ms, key=path.stem)
        elif isinstance(event, Start):
            block_size = max(block_size, event.block_size)
    drafted = [event for event in rounds if event.draft or event.reason == "no-match"]
    if not any(event.draft for event in drafted):
        raise UsageError(f"no round in {path} has a draft", "record one with --schedule fixed:N")
    block_size = max(block_size, *(len(event.draft) for event in drafted))
    made = curve or _curve_of(rounds, path.stem)
    return Recording(_rounds(path.stem, drafted, block_size, seed), made, len(rounds) - len(drafted))


def read_curve(path: Path) -> SpsCurve:
    """A step curve from JSON: ``{"verify_ms": [one row, two rows, …], "draft_ms": …}``, as in a curve event.

    Raises:
        UsageError: the file cannot be read or holds no such curve.
    """
    try:
        body = json.loads("\n".join(_lines(path)))
        times = [float(ms) for ms in body["verify_ms"]]
        return SpsCurve.flat(times, float(body["draft_ms"]), float(body.get("cut_back_ms", 0.0)), path.stem)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        way_out = 'write {"verify_ms": [one row, two rows, …], "draft_ms": …}, in milliseconds'
        raise UsageError(f"{path} holds no step curve ({error})", way_out) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{path} cannot be read ({reason})") from error


def _rounds(name: str, events: list[Round], block_size: int, seed: int) -> Rounds:
    headless = any(event.confidence is None for event in events if event.draft)
    rates = _slot_rates(events, block_size)
    shown = np.tile(rates, (len(events), 1))
    if not headless:
        for row, event in zip(shown, events, strict=True):
            row[: len(event.draft)] = event.confidence or ()
    drafted = np.array([len(event.draft) for event in events], np.int64)
    standing = np.array([event.accepted for event in events], np.int64)
    # A stop ends the reply: what would have stood behind it does not matter to any schedule.
    open_end = np.array([event.outcome == "bonus" for event in events])
    unknown = open_end & (standing < drafted)
    draws = np.random.default_rng(seed)
    for i in np.flatnonzero(unknown):
        rest = draws.random(drafted[i] - standing[i]) < shown[i, standing[i] : drafted[i]]
        standing[i] += np.cumprod(rest).sum()
    certain = all(event.q is None for event in events)
    return Rounds(name, shown, standing, drafted, unknown, certain, headless)


def _slot_rates(events: list[Round], block_size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How often each slot stood where it was judged; a slot that never was is taken to do as the one before."""
    stood, judged = np.zeros(block_size), np.zeros(block_size)
    for event in events:
        stood[: event.accepted] += 1
        judged[: min(event.verified, event.accepted + (event.outcome == "corrected"))] += 1
    rates = np.zeros(block_size)
    for slot in range(block_size):
        rates[slot] = stood[slot] / judged[slot] if judged[slot] else rates[max(slot - 1, 0)]
    return rates


def _curve_of(rounds: list[Round], key: str) -> SpsCurve | None:
    """Median times by rows: needs plain rounds and one more width."""
    times: dict[int, list[float]] = defaultdict(list)
    for event in rounds:
        times[1 + event.verified].append(event.ms.verify)
    widths = tuple(sorted(width for width, seen in times.items() if len(seen) >= FEWEST_TIMES))
    drafts = [event.ms.draft for event in rounds if event.draft]
    if len(widths) < 2 or widths[0] != 1 or any(median(times[width]) <= 0 for width in widths):
        return None
    return SpsCurve(widths, (0,), (tuple(median(times[width]) for width in widths),), median(drafts), key=key)
