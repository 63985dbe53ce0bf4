"""A picture of the simulation: how much of each draft is verified as more replies share a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspark_cli.bench.simulator import REPLIES, SHARED_CURVE, Parallel, Rounds, parallel
from dspark_cli.errors import DsparkError
from dspark_cli.paths import replacing
from dspark_cli.training.reliability_plot import check_plot

__all__ = ["check_plot", "draw"]

MOST_TEXTS = 4


def draw(
    kinds: Sequence[Rounds], path: Path, tell: Callable[[str], None] = lambda text: None
) -> dict[str, list[dict[str, Any]]]:
    """Simulate growing numbers of replies on one made-up machine, draw the mean verified length and the speed.

    Of more than four kinds of rounds the first four are drawn. Numbers of replies that a recording has fewer than ten
    steps for are left out.

    Returns:
        The points by kind.

    Raises:
        DsparkError: the file cannot be written.
    """
    points: dict[str, list[Parallel]] = {}
    for rounds in kinds[:MOST_TEXTS]:
        tell(f"replies at once: {rounds.name}")
        enough = [replies for replies in REPLIES if len(rounds) >= 10 * replies]
        points[rounds.name] = [parallel(rounds, SHARED_CURVE, replies) for replies in enough]
    _paint(points, path)
    return {name: [one.to_dict() for one in found] for name, found in points.items()}


def _paint(points: dict[str, list[Parallel]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    lengths, speeds = figure.subplots(1, 2)
    for name, found in points.items():
        replies = [one.replies for one in found]
        lengths.plot(replies, [one.verified_length for one in found], marker="o", label=name)
        speeds.plot(replies, [one.speed for one in found], marker="o", label=name)
    for axis, label in ((lengths, "verified tokens of a draft"), (speeds, "speed against no drafts")):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("replies at once")
        axis.set_ylabel(label)
        axis.set_xticks(REPLIES, [str(one) for one in REPLIES])
    lengths.set_ylim(bottom=0)
    speeds.axhline(1.0, color="grey", linewidth=0.8)
    lengths.legend()
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
    except OSError as error:
        raise DsparkError(f"--plot {path} cannot be written ({error.strerror})", "choose another place") from error
