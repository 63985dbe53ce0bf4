"""What one pass of the target costs by its number of rows: the price list of verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from dspark_cli.bench.statistics import PairedRatio, median_ratio
from dspark_cli.engine.contracts import Cache, Rows, Target

WIDTHS = (1, 2, 4, 8)
DEPTH = 256
WARM_UP_PASSES = 2


@dataclass(frozen=True)
class StepCurve:
    """Milliseconds of whole passes, head included, at ``depth`` rows of cache. ``times[i]`` belongs to ``widths[i]``.

    The entries of one repeat stand at the same index of each list: they were measured one after the other.
    """

    depth: int
    widths: tuple[int, ...]
    times: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> tuple[float, ...]:
        return tuple(median(times) for times in self.times)

    def ratio(self, width: int) -> PairedRatio | None:
        """What ``width`` rows cost against one: the median over the repeats."""
        one, many = self.times[self.widths.index(1)], self.times[self.widths.index(width)]
        return median_ratio(zip(many, one, strict=True))

    def to_dict(self) -> dict[str, Any]:
        ratios = {width: self.ratio(width) for width in self.widths}
        return {
            "depth": self.depth,
            "widths": list(self.widths),
            "median_ms": list(self.medians),
            "ratio_to_one_row": [vars(ratio) if ratio is not None else None for ratio in ratios.values()],
            "ms": [list(times) for times in self.times],
        }


def measure_step_curve(
    target: Target,
    *,
    taps: tuple[int, ...] = (),
    widths: Sequence[int] = WIDTHS,
    depth: int = DEPTH,
    repeats: int = 15,
    deadline: float | None = None,
    settle: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = perf_counter,
) -> StepCurve | None:
    """Time passes of each width in turn, the order turned round every other repeat.

    Args:
        target: whose passes are timed; rows at the end of a cache, as in verification.
        taps: tapped layers that a drafter would ask for.
        widths: numbers of rows; 1 must be among them.
        depth: rows in the cache before each pass; less where the context is shorter.
        repeats: passes of each width.
        deadline: on ``clock``, in seconds: no repeat but the first begins after it.
        settle: waits until the device has finished (nothing to do on a CPU).
        clock: seconds, rising.

    Returns:
        None where the context has no room for the widest pass.
    """
    depth = min(depth, target.context_length - max(widths))
    if depth < 1:
        return None
    cache = target.new_cache()
    times: dict[int, list[float]] = {width: [] for width in widths}
    with torch.inference_mode():
        target.forward([Rows(cache, _some_ids(target, depth), depth - 1)])
        for repeat in range(-WARM_UP_PASSES, repeats):
            if deadline is not None and repeat > 0 and clock() > deadline:
                break
            for width in widths if repeat % 2 == 0 else tuple(reversed(widths)):
                ms = _one_pass(target, cache, width, taps, settle, clock)
                if repeat >= 0:
                    times[width].append(ms)
    return StepCurve(depth, tuple(widths), tuple(tuple(times[width]) for width in widths))


def settle_for(device: str) -> Callable[[], None]:
    """What waits until ``device`` has finished its work."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def _one_pass(
    target: Target,
    cache: Cache,
    width: int,
    taps: tuple[int, ...],
    settle: Callable[[], None],
    clock: Callable[[], float],
) -> float:
    depth = cache.length
    ids = _some_ids(target, width)
    settle()
    began = clock()
    target.forward([Rows(cache, ids)], taps)
    settle()
    ms = (clock() - began) * 1e3
    cache.truncate(depth)
    return ms


def _some_ids(target: Target, count: int) -> tuple[int, ...]:
    """Different ids, so that embedding rows do not all come from the same place in memory."""
    return tuple((7919 * i + 13) % target.vocab_size for i in range(count))
