"""From the text of ``--schedule`` to a scheduler."""

from __future__ import annotations

import math

from dspark_cli.engine.contracts import Scheduler
from dspark_cli.engine.scheduler.fixed import Fixed, Off
from dspark_cli.engine.scheduler.threshold import Threshold
from dspark_cli.errors import UsageError

FORMS = "off, fixed:N (N ≥ 0) or threshold:P (0 ≤ P ≤ 1)"


def _number(text: str, kind: type[int] | type[float]) -> float | None:
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_schedule(text: str, *, has_confidence: bool | None = None) -> Scheduler:
    """The scheduler that ``text`` names.

    Args:
        text: ``off``, ``fixed:N`` or ``threshold:P``.
        has_confidence: whether the drafter has a confidence head; None where it is not known yet.

    Raises:
        UsageError: the text is none of the forms, or a threshold is asked of a drafter without confidences.
    """
    kind, _, argument = text.partition(":")
    if text == "off":
        return Off()
    if kind == "fixed":
        length = _number(argument, int)
        if length is not None and length >= 0:
            return Fixed(int(length))
    if kind == "threshold":
        threshold = _number(argument, float)
        if threshold is not None and 0.0 <= threshold <= 1.0:
            if has_confidence is False:
                raise UsageError(
                    f"--schedule {text} needs a drafter with a confidence head, and this one has none",
                    "use --schedule fixed:N or off",
                )
            return Threshold(threshold)
    raise UsageError(f"--schedule {text!r} is not a schedule", f"use {FORMS}")
