"""The ways of making a reply that are timed against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dspark_cli.bench.prompt_sets import BenchPrompt
from dspark_cli.bench.samples import Sample
from dspark_cli.conversation import Conversation
from dspark_cli.engine.contracts import Sampling
from dspark_cli.errors import ContextError
from dspark_cli.events import End
from dspark_cli.trace import RunSummary

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine, Prompt

PLAIN = "plain"


@dataclass(frozen=True)
class Task:
    """A prompt as token ids, the same for every mode."""

    source: BenchPrompt
    prompt: Prompt


@dataclass(frozen=True)
class Unavailable:
    """A mode that was asked for and cannot run here, and why."""

    mode: str
    reason: str


class Mode(Protocol):
    """One way of making a reply."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        """Read the whole prompt and make a greedy reply, timed."""


@dataclass(frozen=True)
class EngineMode:
    """Our engine under one schedule. The caches of the reply before are dropped, so every reply starts alike."""

    name: str
    engine: Engine
    schedule: str

    def reply(self, task: Task, max_new_tokens: int) -> Sample:
        self.engine.forget()
        request = self.engine.request(
            task.prompt, sampling=Sampling(), max_new_tokens=max_new_tokens, schedule=self.schedule
        )
        summary = RunSummary()
        ids: tuple[int, ...] = ()
        for event in self.engine.generate(request):
            summary.fold(event)
            if isinstance(event, End):
                ids = event.output_ids
        return Sample(
            mode=self.name,
            prompt=task.source.id,
            kind=task.source.kind,
            output_ids=ids,
            decode_ms=summary.decode_ms,
            first_token_ms=summary.first_token_at or 0.0,
            summary=summary,
        )


def engine_modes(engine: Engine, schedule: str | None) -> tuple[list[EngineMode], list[Unavailable]]:
    """Plain decoding and, where there is a drafter, the engine's default schedule or the one asked for."""
    modes = [EngineMode(PLAIN, engine, "off")]
    if engine.drafter_kind == "none":
        return modes, [Unavailable("speculative", "there is no drafter")]
    chosen = schedule or engine.default_schedule
    return [*modes, EngineMode(f"{engine.drafter_kind} {chosen}", engine, chosen)], []


def tasks_for(engine: Engine, prompts: tuple[BenchPrompt, ...], reserve: int) -> tuple[list[Task], list[str]]:
    """The prompts in token ids, and the ids of those that do not fit the context beside ``reserve`` new tokens."""
    tasks, too_long = [], []
    for prompt in prompts:
        conversation = Conversation()
        conversation.add_user(prompt.text)
        try:
            tasks.append(Task(prompt, engine.prompt(conversation, reserve=reserve)))
        except ContextError:
            too_long.append(prompt.id)
    return tasks, too_long
