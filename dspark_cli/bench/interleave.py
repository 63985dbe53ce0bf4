"""Modes in turn, so that a machine that drifts (heat, other programs) treats all of them alike.

Each prompt is one turn: every mode answers it, one right after the other. The order is turned round from turn to
turn, A B, B A, …, and within each kind of prompt too, so that a steady drift cancels out of the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from dspark_cli.bench.modes import Mode, Task
from dspark_cli.bench.samples import Sample

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Step:
    """One reply that is about to be made; ``step`` of ``steps``."""

    mode: str
    prompt: str
    step: int
    steps: int


def orders(kinds: Sequence[str], modes: int) -> list[tuple[int, ...]]:
    """For turns over prompts of these kinds, the order in which the modes (by index) take their turn.

    Turned round every other time that a kind comes, starting with the opposite order for every other kind.
    """
    seen: dict[str, int] = {}
    first: dict[str, int] = {}
    result = []
    for kind in kinds:
        first.setdefault(kind, len(first))
        turned = (first[kind] + seen.get(kind, 0)) % 2
        seen[kind] = seen.get(kind, 0) + 1
        result.append(tuple(reversed(range(modes))) if turned else tuple(range(modes)))
    return result


def warm_up(modes: Sequence[Mode], task: Task) -> None:
    """One short reply each, not counted: first calls pay for memory, threads and lazy imports."""
    for mode in modes:
        mode.reply(task, WARM_UP_TOKENS)


def take_turns(
    modes: Sequence[Mode],
    tasks: Sequence[Task],
    max_new_tokens: int,
    *,
    deadline: float | None = None,
    tell: Callable[[Step], None] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Sample]:
    """Time every mode on every task, in turns.

    Args:
        modes: what is compared.
        tasks: prompts in the order of the turns.
        max_new_tokens: the most tokens a reply.
        deadline: on ``clock``, in seconds: no turn begins that would probably end after it, except the first.
        tell: hears of each reply before it is made.
        clock: seconds, rising.
    """
    steps = len(modes) * len(tasks)
    longest, step = 0.0, 0
    for task, order in zip(tasks, orders([task.source.kind for task in tasks], len(modes)), strict=True):
        began = clock()
        if deadline is not None and step and began + longest > deadline:
            return
        for index in order:
            step += 1
            tell(Step(modes[index].name, task.source.id, step, steps))
            yield modes[index].reply(task, max_new_tokens)
        longest = max(longest, clock() - began)
