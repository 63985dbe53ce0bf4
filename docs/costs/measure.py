"""Measures what the demo model costs on this machine: ``python docs/costs/measure.py`` with the program installed.

Writes start.json (seconds from the command to the first text, memory, disk) and bench.json (``dspark bench --quick
--peers transformers``) beside this file; write.py makes the pages from them.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DSPARK = [sys.executable, "-m", "dspark_cli"]
QUESTION = "What is the capital of France?"


def first_text(environment: dict[str, str]) -> float:
    """Seconds from the command to the first byte of its answer."""
    begun = time.perf_counter()
    command = [*DSPARK, "run", QUESTION]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - begun
        process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed with {process.returncode}")
    return seconds


def help_seconds() -> float:
    """Seconds that ``dspark --help`` takes."""
    begun = time.perf_counter()
    subprocess.run([*DSPARK, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def folder_bytes(folder: Path) -> int:
    """Disk that the files below ``folder`` take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure_start() -> dict[str, object]:
    """Start, memory and disk, with a weight cache of their own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        first = first_text(environment)
        later = [first_text(environment) for _ in range(5)]
        cached = folder_bytes(Path(cache))
    return {
        "first_text_seconds": {"first": first, "later": statistics.median(later), "later_all": later},
        "help_seconds": statistics.median(help_seconds() for _ in range(5)),
        "most_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "weight_cache_bytes": cached,
        "environment_bytes": folder_bytes(Path(sys.prefix)),
    }


if __name__ == "__main__":
    (HERE / "start.json").write_text(json.dumps(measure_start(), indent=1) + "\n", "utf-8")
    subprocess.run(
        [*DSPARK, "bench", "--quick", "--peers", "transformers", "--output", str(HERE / "bench.json")], check=True
    )
