"""What one step of the target costs by its number of rows and the depth of the cache: steps per second as a value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite


@dataclass(frozen=True)
class SpsCurve:
    """The step curve of one model on one machine, as it was measured.

    ``verify_ms[d][w]`` are milliseconds of a step over ``widths[w]`` rows, all replies together, at ``depths[d]`` rows
    of cache. A width that was measured keeps its own time, so a staircase stays one; in between, and beyond the widest,
    the line through the two nearest measured widths is taken. Depths are treated alike, but none below the first.
    ``draft_ms`` is one draft. ``cut_back_ms`` is what a rejection costs on top: cutting the caches back.
    ``key`` names model, weights, device and versions. For joules instead of milliseconds the same value serves.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    verify_ms: tuple[tuple[float, ...], ...]
    draft_ms: float
    cut_back_ms: float = 0.0
    key: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError: the shapes disagree, a list is not rising, or a time cannot be one."""
        for name, values in (("widths", self.widths), ("depths", self.depths)):
            if not values or any(b <= a for a, b in pairwise(values)):
                raise ValueError(f"{name} of a step curve must rise, and there must be one")
        if self.widths[0] != 1 or self.depths[0] < 0:
            raise ValueError("a step curve begins at 1 row and at a depth that is not negative")
        if len(self.verify_ms) != len(self.depths) or any(len(row) != len(self.widths) for row in self.verify_ms):
            raise ValueError("verify_ms of a step curve must hold one time for each depth and width")
        if any(not (isfinite(ms) and ms > 0) for row in self.verify_ms for ms in row):
            raise ValueError("a step takes more than 0 ms")
        if any(not (isfinite(ms) and ms >= 0) for ms in (self.draft_ms, self.cut_back_ms)):
            raise ValueError("a draft and a cut-back take 0 ms or more")

    @classmethod
    def flat(cls, verify_ms: Sequence[float], draft_ms: float, cut_back_ms: float = 0.0, key: str = "") -> SpsCurve:
        """A curve that is the same at every depth; ``verify_ms[i]`` belongs to i + 1 rows."""
        widths = tuple(range(1, len(verify_ms) + 1))
        return cls(widths, (0,), (tuple(verify_ms),), draft_ms, cut_back_ms, key)

    def step_ms(self, rows: int, depth: int = 0) -> float:
        """Milliseconds of a step over ``rows`` ≥ 1 rows at ``depth`` rows of cache; never below that of no depth."""
        times = [_between(self.widths, row, rows) for row in self.verify_ms]
        return _between(self.depths, times, max(depth, self.depths[0]))

    def steps_ms(self, most: int, depth: int = 0) -> list[float]:
        """``[step_ms(1), …, step_ms(most)]`` at ``depth``."""
        return [self.step_ms(rows, depth) for rows in range(1, most + 1)]

    def sps(self, rows: int, depth: int = 0) -> float:
        """Steps per second at that width and depth."""
        return 1e3 / self.step_ms(rows, depth)


def _between(places: tuple[int, ...], values: Sequence[float], at: int) -> float:
    """The value at ``at``: as measured there, else on the line through the two nearest places."""
    if len(places) == 1:
        return values[0]
    right = min(max(bisect_right(places, at), 1), len(places) - 1)
    left = right - 1
    if at == places[left]:
        return values[left]
    if at == places[right]:
        return values[right]
    slope = (values[right] - values[left]) / (places[right] - places[left])
    if at > places[right]:  # where a falling line is noise, not a gain to count on
        return values[right] + max(slope, 0.0) * (at - places[right])
    return values[left] + slope * (at - places[left])
