"""A reliability diagram: of the rounds that were promised a chance, how many survived."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.paths import replacing
from dspark_cli.training.temperature_scaling import prefix_survival, reliability

if TYPE_CHECKING:
    from dspark_cli.training.calibrate import LawReport

_FEWEST_IN_A_POINT = 10


def check_plot(path: Path) -> None:
    """Refuse a plot that could not be drawn, before the work is done.

    Raises:
        UsageError: no .png, no such folder, or matplotlib is not installed.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path} is not a .png file", "give it a name that ends in .png")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path} lies in a folder that does not exist", "make the folder first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", "pip install 'dspark-cli[plot]'")


def draw(reports: Seq[LawReport], title: str, path: Path) -> None:
    """Draw a row for each law, before on the left and after on the right, a line for each slot.

    Points of fewer than 10 rounds are left out; the size of a point grows with its rounds.

    Raises:
        DsparkError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4 * len(reports)), layout="constrained")
    axes = figure.subplots(len(reports), 2, squeeze=False, sharex=True, sharey=True)
    for row, report in zip(axes, reports, strict=True):
        _panel(row[0], report, None, f"{report.law}, before: ECE {report.mean('error_before'):.1%}")
        _panel(row[1], report, report.temperatures, f"{report.law}, after: ECE {report.mean('error_after'):.1%}")
    axes[0][0].legend(title="survival up to", fontsize="small")
    figure.suptitle(title)
    figure.supxlabel("predicted prefix survival")
    figure.supylabel("rounds that survived")
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
    except OSError as error:
        raise DsparkError(f"--plot {path} cannot be written ({error.strerror})", "choose another place") from error


def _panel(axis: Any, report: LawReport, temperatures: tuple[float, ...] | None, title: str) -> None:
    axis.plot((0, 1), (0, 1), color="grey", linewidth=0.8, linestyle="--")
    survived = report.checked.survived
    predicted = prefix_survival(report.checked.logits, temperatures)
    for slot in range(predicted.shape[1]):
        known = ~survived[:, slot].isnan()
        points = reliability(predicted[known, slot], survived[known, slot])
        points = [point for point in points if point[2] >= _FEWEST_IN_A_POINT]
        if not points:
            continue
        told, happened, rounds = zip(*points, strict=True)
        (line,) = axis.plot(told, happened, linewidth=1, label=f"slot {slot + 1}")
        axis.scatter(told, happened, s=[4 + count**0.5 for count in rounds], color=line.get_color())
    axis.set(title=title, xlim=(0, 1), ylim=(0, 1), aspect="equal")
