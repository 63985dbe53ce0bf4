"""The event schema, version 1: what a reply tells about itself while it is made.

Every value shown on a screen, written by ``--json`` or stored in a trace comes from these events.
:func:`to_json` and :func:`from_json` are the only place where they become JSON and back.
Ids are integers, times are milliseconds, probabilities lie in [0, 1].
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

SCHEMA_VERSION = 1

OUTCOMES = ("corrected", "bonus", "stop")
REASONS = (
    "whole-block", "cut-by-gain", "cut-by-threshold", "cut-by-budget", "fixed", "bypass", "probe", "labels",
    "no-match", "off", "token-limit", "context-limit", "no-drafter", "first-token",
)  # fmt: skip
END_REASONS = ("stop", "stop_string", "length", "context", "cancelled", "error")
DRAFTER_KINDS = ("dspark", "parallel", "sequential", "ngram", "none")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A reply begins: the pair, the settings and the machine."""

    event: ClassVar[str] = "start"
    request: str
    model: str
    drafter: str | None
    drafter_kind: str
    engine: str
    device: str
    dtype: str
    block_size: int
    schedule: str
    prompt_tokens: int
    cached_tokens: int
    context_length: int
    sampling: dict[str, Any]
    seed: int
    threads: int
    weights: str
    objective: str = "latency"
    calibration: str | None = None
    v: int = SCHEMA_VERSION
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """``done`` of ``total`` prompt tokens have been read, in ``ms`` so far."""

    event: ClassVar[str] = "prefill"
    request: str
    done: int
    total: int
    ms: float
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Milliseconds of each part of one round."""

    draft: float = 0.0
    plan: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    commit: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: what was drafted, how much was verified and why, and what became of it."""

    event: ClassVar[str] = "round"
    request: str
    index: int
    position: int
    anchor: int | None
    draft: tuple[int, ...]
    confidence: tuple[float, ...] | None
    survival: tuple[float, ...] | None
    planned: int
    verified: int
    accepted: int
    next_token: int | None
    outcome: str
    tokens: tuple[int, ...]
    text: str
    reason: str
    pieces: tuple[str, ...] = ()
    p: tuple[float | None, ...] | None = None
    q: tuple[float, ...] | None = None
    theta: tuple[float, ...] | None = None
    ms: RoundTimes = field(default_factory=RoundTimes)
    cost: dict[str, float] | None = None
    load: dict[str, Any] | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] | None = None
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The step curve in force."""

    event: ClassVar[str] = "curve"
    request: str | None
    verify_ms: tuple[float, ...]
    draft_ms: float
    depth: int
    plain_tokens_per_second: float
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text that is safe to show: no half character and no part of a stop string."""

    event: ClassVar[str] = "text"
    request: str
    delta: str
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that the user should know aloud, such as a fallback and its cause."""

    event: ClassVar[str] = "note"
    request: str | None
    level: str
    code: str
    message: str
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class End:
    """A reply is over: its ids, its text and its totals (see ``trace.RunSummary``)."""

    event: ClassVar[str] = "end"
    request: str
    reason: str
    output_ids: tuple[int, ...]
    text: str
    stats: dict[str, Any]
    at: float = 0.0


Event = Start | Prefill | Round | Curve | Text | Note | End
_TYPES: dict[str, type[Any]] = {t.event: t for t in (Start, Prefill, Round, Curve, Text, Note, End)}


def to_json(event: Event) -> str:
    """One line of JSON (no newline), UTF-8 text, keys in the order of the schema."""
    body: dict[str, Any] = {"event": event.event, **dataclasses.asdict(event)}
    if body.get("top", 0) is None:
        del body["top"]
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def from_json(line: str) -> Event:
    """The event that ``line`` holds; keys that this version does not know are ignored.

    Raises:
        ValueError: the line is not JSON, names no known event, or misses a key.
    """
    body = json.loads(line)
    if not isinstance(body, dict) or body.get("event") not in _TYPES:
        raise ValueError("not an event of the schema")
    kind = _TYPES[body["event"]]
    known = {f.name for f in dataclasses.fields(kind)}
    values = {key: _tuples(value) for key, value in body.items() if key in known}
    if kind is Round and isinstance(values.get("ms"), dict):
        times = {f.name for f in dataclasses.fields(RoundTimes)}
        values["ms"] = RoundTimes(**{key: value for key, value in values["ms"].items() if key in times})
    try:
        event: Event = kind(**values)
    except TypeError as error:
        raise ValueError(f"a {body['event']} event without a needed key ({error})") from error
    return event
