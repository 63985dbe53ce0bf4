"""Writes the figures of README.md from start.json and bench.json, which measure.py made; ``make docs`` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- costs: written by docs/costs/write.py -->", "<!-- end of costs -->"


def block() -> str:
    """What stands between the marks."""
    start: dict[str, Any] = json.loads((HERE / "start.json").read_text("utf-8"))
    bench: dict[str, Any] = json.loads((HERE / "bench.json").read_text("utf-8"))
    text = start["first_text_seconds"]
    steps = dict(zip(bench["steps"]["widths"], bench["steps"]["median_ms"], strict=True))
    rows = [
        ("disk, `.venv` with the test tools", _size(start["environment_bytes"])),
        ("disk, unpacked weights kept in `~/.cache/dspark`", _size(start["weight_cache_bytes"])),
        ("memory at most", _size(start["most_memory_bytes"])),
        ("first text after the command, the first time", f"{text['first']:.1f} s"),
        ("first text after the command, from then on", f"{text['later']:.1f} s"),
        ("plain decoding", f"{_speed(bench, 'plain')} tokens/s"),
        ("plain decoding against transformers' `generate`", _inverse(bench, "transformers", "plain")),
        ("one pass over 8 rows against one row", f"{steps[8] / steps[1]:.2f}×"),
        ("prompt lookup against plain, all kinds", _ratio(bench, "ngram fixed:7", "plain", None)),
        ("prompt lookup against plain, copying", _ratio(bench, "ngram fixed:7", "plain", "copying")),
    ]
    machine = f"{bench['cpu']}, {bench['cores']} cores, {bench['threads']} threads, torch {bench['torch']}"
    lines = [
        f"The demo model ({bench['weights']}) on {machine}, measured by [measure.py](docs/costs/measure.py); in",
        "brackets 95 % intervals:",
        "",
        "| what | figure |",
        "|---|---|",
        *(f"| {what} | {figure} |" for what, figure in rows),
    ]
    return "\n".join(lines)


def readme() -> str:
    """README.md with the block as it should be."""
    text = README.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{block()}\n{END}{after}"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _speed(bench: dict[str, Any], mode: str) -> str:
    found = next(entry for entry in bench["modes"] if entry["mode"] == mode)
    return f"{found['kinds']['all']['tokens_per_second']['median']:.0f}"


def _found(bench: dict[str, Any], mode: str, against: str, kind: str | None) -> dict[str, float]:
    for entry in bench["comparisons"]:
        if (entry["mode"], entry["against"], entry["kind"]) == (mode, against, kind or "all"):
            values: dict[str, float] = entry
            return values
    raise ValueError(f"no comparison of {mode} with {against}")


def _ratio(bench: dict[str, Any], mode: str, against: str, kind: str | None) -> str:
    entry = _found(bench, mode, against, kind)
    return f"{entry['ratio']:.2f}× ({entry['low']:.2f}–{entry['high']:.2f})"


def _inverse(bench: dict[str, Any], mode: str, against: str) -> str:
    entry = _found(bench, mode, against, None)
    return f"{1 / entry['ratio']:.2f}× ({1 / entry['high']:.2f}–{1 / entry['low']:.2f})"


if __name__ == "__main__":
    README.write_text(readme(), "utf-8")
