"""Modes that take the time that a test says, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from dspark_cli.bench.modes import Task
from dspark_cli.bench.prompt_sets import KINDS, BenchPrompt
from dspark_cli.bench.samples import Sample
from dspark_cli.events import Round, RoundTimes, Start
from dspark_cli.trace import RunSummary

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Prompt


@dataclass(frozen=True)
class Ids:
    """As much of an engine's prompt as the bench looks at."""

    ids: tuple[int, ...]


def task(name: str, kind: str = "chat", ids: tuple[int, ...] = (1, 2)) -> Task:
    prompt: Prompt = Ids(ids)  # type: ignore[assignment]
    return Task(BenchPrompt(name, kind, f"text of {name}"), prompt)


def tasks(each: int) -> list[Task]:
    """``each`` of every kind, in turn."""
    return [task(f"{kind}-{number}", kind) for number in range(each) for kind in KINDS]


@dataclass
class FakeClock:
    """Seconds that pass only when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeMode:
    """Replies with ``tokens`` ids in ``seconds``, and notes in ``log`` that it was asked."""

    name: str
    clock: FakeClock
    seconds: float
    log: list[tuple[str, str, int]]
    tokens: int = 11
    before: Callable[[], None] = lambda: None
    numbers: Any = field(default_factory=count)

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        self.before()
        self.log.append((self.name, task.source.id, max_new_tokens))
        self.clock.now += self.seconds
        return Sample(self.name, task.source.id, task.source.kind, tuple(range(self.tokens)), self.seconds * 1e3, 5.0)


def summary(*rounds: tuple[int, int]) -> RunSummary:
    """The fold of a reply whose rounds verified and accepted so many drafted tokens, 10 ms each."""
    folded = RunSummary()
    common: dict[str, Any] = {
        "request": "r", "position": 0, "confidence": None, "survival": None, "text": "", "reason": "fixed",
    }  # fmt: skip
    folded.fold(
        Start(request="r", model="m", drafter=None, drafter_kind="ngram", engine="torch", device="cpu",
              dtype="float32", block_size=4, schedule="fixed:4", prompt_tokens=2, cached_tokens=0,
              context_length=99, sampling={}, seed=0, threads=1, weights="f32")
    )  # fmt: skip
    folded.fold(Round(index=0, anchor=None, draft=(), planned=0, verified=0, accepted=0, next_token=1,
                      outcome="bonus", tokens=(1,), at=5.0, **common))  # fmt: skip
    for index, (verified, accepted) in enumerate(rounds, start=1):
        folded.fold(
            Round(
                index=index, anchor=1, draft=tuple(range(verified)), planned=verified, verified=verified,
                accepted=accepted, next_token=1, outcome="bonus" if accepted == verified else "corrected",
                tokens=tuple(range(accepted + 1)), ms=RoundTimes(draft=1, verify=8, accept=1, total=10),
                at=5.0 + 10 * index, **common,
            )
        )  # fmt: skip
    return folded
