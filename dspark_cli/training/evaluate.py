"""How good is a drafter: accepted length, conditional acceptance by position and waste, by kind of prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from dspark_cli.bench.prompt_sets import BenchPrompt
from dspark_cli.conversation import Conversation
from dspark_cli.engine.contracts import Sampling
from dspark_cli.engine.engine import Engine
from dspark_cli.events import Round
from dspark_cli.trace import DraftCounts

LONGEST_PERIOD = 64
SHORTEST_REPETITION = 16


@dataclass
class Tally:
    """Counts of rounds with a draft: of all, and of those that began inside a repetition (see :func:`repeats`)."""

    every: DraftCounts = field(default_factory=DraftCounts)
    looping: DraftCounts = field(default_factory=DraftCounts)

    def add(self, event: Round, looping: bool) -> None:
        """Count one round that had a draft."""
        self.every.add(event)
        if looping:
            self.looping.add(event)

    def merge(self, other: Tally) -> None:
        """Add the counts of ``other``."""
        self.every.merge(other.every)
        self.looping.merge(other.looping)

    @property
    def accepted_length_without_loops(self) -> float | None:
        rounds = self.every.draft_rounds - self.looping.draft_rounds
        return (self.every.draft_round_tokens - self.looping.draft_round_tokens) / rounds if rounds else None

    def figures(self) -> dict[str, Any]:
        """All counts and what follows from them, for JSON."""
        every, looping = self.every, self.looping
        return {
            "rounds": every.draft_rounds,
            "tokens": every.draft_round_tokens,
            "verified": every.verified,
            "accepted": every.accepted,
            "accept_by_position": [list(pair) for pair in every.accept_by_position],
            "accepted_length": every.mean_accepted_length,
            "accepted_length_without_loops": self.accepted_length_without_loops,
            "looping_share": looping.draft_rounds / every.draft_rounds if every.draft_rounds else None,
            "conditional_acceptance": every.acceptance,
            "waste": every.waste / every.verified if every.verified else None,
        }


@dataclass(frozen=True)
class Evaluation:
    """What one drafter did on all prompts: a tally a kind."""

    drafter: str
    kind: str
    block_size: int
    temperature: float
    prompts: int
    by_kind: dict[str, Tally]

    @property
    def whole(self) -> Tally:
        total = Tally()
        for tally in self.by_kind.values():
            total.merge(tally)
        return total

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "drafter": self.drafter,
            "drafter_kind": self.kind,
            "block_size": self.block_size,
            "temperature": self.temperature,
            "prompts": self.prompts,
            "all": self.whole.figures(),
            "by_kind": {kind: tally.figures() for kind, tally in self.by_kind.items()},
        }


def repeats(ids: Seq[int]) -> bool:
    """Whether the end of ``ids`` is an exact repetition: at least two periods and 16 tokens of one period up to 64."""
    for period in range(1, LONGEST_PERIOD + 1):
        span = max(2 * period, SHORTEST_REPETITION)
        if span > len(ids):
            return False  # spans only grow with the period
        tail = ids[len(ids) - span :]
        if all(tail[i] == tail[i - period] for i in range(period, span)):
            return True
    return False


def evaluate(
    engine: Engine,
    prompts: Iterable[BenchPrompt],
    *,
    sampling: Sampling | None = None,
    tokens: int = 96,
    schedule: str | None = None,
    passed: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Answer every prompt with whole blocks (or ``schedule``) and count.

    Args:
        engine: with the drafter to judge.
        prompts: none of which the drafter was trained on.
        sampling: greedy unless given.
        tokens: the first so many of each reply count.
        schedule: a policy's text; whole blocks unless given.
        passed: told how many prompts are done.
    """
    law = sampling or Sampling()
    by_kind: dict[str, Tally] = {}
    count = 0
    for count, prompt in enumerate(prompts, start=1):
        tally = by_kind.setdefault(prompt.kind, Tally())
        for event, looping in _rounds(engine, prompt.text, law, tokens, schedule or f"fixed:{engine.block_size}"):
            tally.add(event, looping)
        passed(count)
    name, kind = engine.drafter_name or "none", engine.drafter_kind
    return Evaluation(name, kind, engine.block_size, law.temperature, count, by_kind)


def _rounds(engine: Engine, text: str, sampling: Sampling, tokens: int, schedule: str) -> Iterator[tuple[Round, bool]]:
    """The rounds with a draft of one reply, each with whether it began inside a repetition."""
    conversation = Conversation()
    conversation.add_user(text)
    prompt = engine.prompt(conversation, reserve=tokens)
    request = engine.request(prompt, sampling=sampling, max_new_tokens=tokens, schedule=schedule)
    reply: list[int] = []
    for event in engine.generate(request):
        if isinstance(event, Round):
            if event.draft:
                yield event, repeats(reply)
            reply += event.tokens
