"""One bench from beginning to end: what is measured, in which order, and what an interruption leaves."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from dspark_cli import __version__
from dspark_cli.bench.identity import TIE_GAPS, compare_replies
from dspark_cli.bench.interleave import Step, take_turns, warm_up
from dspark_cli.bench.modes import PLAIN, Mode, Task, Unavailable, engine_modes, tasks_for
from dspark_cli.bench.prompt_sets import BenchPrompt
from dspark_cli.bench.result import BenchResult, Machine
from dspark_cli.bench.step_curve import DEPTH, measure_step_curve, settle_for
from dspark_cli.errors import UsageError

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine

# Logits of another engine's kernels differ by more than those of two paths through one engine.
PEER_TIE_FACTOR = 10.0
STEP_SHARE = 0.15  # of a limited time, for the passes by rows


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    ``deadline`` is on ``time.perf_counter``, in seconds; None for no limit.
    """

    prompts: tuple[BenchPrompt, ...]
    max_new_tokens: int = 128
    step_repeats: int = 30
    step_depth: int = DEPTH
    deadline: float | None = None
    quick: bool = False


def run_bench(
    engine: Engine,
    plan: BenchPlan,
    *,
    schedule: str | None = None,
    load: float | None = None,
    open_others: Callable[[], tuple[list[Mode], list[Unavailable]]] = lambda: ([], []),
    tell: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Measure. Ctrl-C ends it early; the result then holds what was measured until then.

    Args:
        engine: the pair to measure.
        plan: what to measure.
        schedule: the speculative schedule; None means the engine's default.
        load: what other programs did before the bench (see :func:`present_load`).
        open_others: loads the peers.
        tell: hears what is being done, in a few words.

    Raises:
        UsageError: no prompt fits the context, or the schedule does not suit the drafter.
    """
    began = perf_counter()
    tasks, too_long = tasks_for(engine, plan.prompts, plan.max_new_tokens)
    if not tasks:
        raise UsageError(
            f"no prompt of the bench leaves room for {plan.max_new_tokens} tokens in the context of "
            f"{engine.context_length}",
            "raise --context-length or give --tokens a smaller number",
        )
    ours, missing = engine_modes(engine, schedule)
    result = BenchResult(
        machine=describe_machine(engine, load),
        max_new_tokens=plan.max_new_tokens,
        modes=tuple(mode.name for mode in ours),
        planned=len(tasks),
        quick=plan.quick,
        unavailable=missing,
        left_out=too_long,
    )
    try:
        others, without = open_others()
        result.unavailable += without
        modes: list[Mode] = [*ours, *others]
        result.modes = tuple(mode.name for mode in modes)
        _measure(engine, plan, modes, tasks, result, tell)
    except KeyboardInterrupt:
        result.stopped = "interrupted"
    tell("comparing the replies")
    _compare(engine, tasks, result)
    engine.forget()
    result.seconds = perf_counter() - began
    return result


def _measure(
    engine: Engine,
    plan: BenchPlan,
    modes: Sequence[Mode],
    tasks: Sequence[Task],
    result: BenchResult,
    tell: Callable[[str], None],
) -> None:
    pair = engine.pair
    tell("timing passes of the target by rows")
    now = perf_counter()
    result.steps = measure_step_curve(
        pair.target,
        taps=pair.drafter.taps if pair.drafter is not None else (),
        depth=plan.step_depth,
        repeats=plan.step_repeats,
        deadline=None if plan.deadline is None else now + STEP_SHARE * (plan.deadline - now),
        settle=settle_for(pair.device),
    )
    tell("warming up")
    warm_up(modes, tasks[0])

    def progress(step: Step) -> None:
        tell(f"reply {step.step} of {step.steps}: {step.mode}, {step.prompt}")

    for sample in take_turns(modes, tasks, plan.max_new_tokens, deadline=plan.deadline, tell=progress):
        result.samples.append(sample)
    if result.complete() < len(tasks):
        result.stopped = "time"


def _compare(engine: Engine, tasks: Sequence[Task], result: BenchResult) -> None:
    gap = TIE_GAPS[engine.pair.dtype]
    for mode in result.modes:
        if mode == PLAIN:
            continue
        theirs = result.of(mode)
        ours = any(sample.summary is not None for sample in theirs)
        identity = compare_replies(
            engine.pair.target, tasks, result.of(PLAIN), theirs, gap if ours else gap * PEER_TIE_FACTOR
        )
        if identity is not None:
            result.identities.append(identity)


def describe_machine(engine: Engine, load: float | None) -> Machine:
    """The machine, the versions and the pair, for the head of a report. ``load`` as it was before the bench."""
    pair = engine.pair
    return Machine(
        version=__version__,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        cpu=cpu_name(),
        cores=core_count(),
        load=load,
        device=pair.device,
        threads=pair.threads,
        torch=torch.__version__,
        python=platform.python_version(),
        model=engine.model_name,
        weights=pair.weights_format,
        dtype=pair.dtype,
        drafter=engine.drafter_name,
        drafter_kind=engine.drafter_kind,
        block_size=engine.block_size,
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def present_load() -> float | None:
    """Busy processes over the last minute, as the system averages them; None where it does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
