"""From events to numbers: one fold for the screen, the bench, a replay and the end event."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any

from dspark_cli.events import Event, Prefill, Round, Start

PARTS = ("draft", "plan", "verify", "accept", "commit")


@dataclass
class DraftCounts:
    """What drafts came to: one count for a reply, for a bench, for an evaluation.

    ``rounds`` are all but the first token's, ``draft_rounds`` those with a draft. ``accept_by_position[k]`` is
    [accepted, tried] of slot k: tried counts verified slots that were judged, that is those whose predecessors were
    all accepted.
    """

    rounds: int = 0
    draft_rounds: int = 0
    draft_round_tokens: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    accept_by_position: list[list[int]] = field(default_factory=list)
    ms_by_part: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def add(self, event: Round) -> None:
        """Count one round that is not the first token's."""
        self.rounds += 1
        for part in PARTS:
            self.ms_by_part[part] += getattr(event.ms, part)
        if not event.draft:
            return
        self.draft_rounds += 1
        self.draft_round_tokens += len(event.tokens)
        self.drafted += len(event.draft)
        self.verified += event.verified
        self.accepted += event.accepted
        judged = min(event.verified, event.accepted + (event.outcome == "corrected"))
        self._count([[int(slot < event.accepted), 1] for slot in range(judged)])

    def merge(self, other: DraftCounts) -> None:
        """Add the counts of ``other``."""
        for name in ("rounds", "draft_rounds", "draft_round_tokens", "drafted", "verified", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for part in PARTS:
            self.ms_by_part[part] += other.ms_by_part[part]
        self._count(other.accept_by_position)

    def _count(self, by_position: list[list[int]]) -> None:
        for slot, (accepted, tried) in enumerate(by_position):
            if slot == len(self.accept_by_position):
                self.accept_by_position.append([0, 0])
            self.accept_by_position[slot][0] += accepted
            self.accept_by_position[slot][1] += tried

    @property
    def mean_accepted_length(self) -> float | None:
        """Committed tokens per round with a draft, counting the corrected or bonus token."""
        return self.draft_round_tokens / self.draft_rounds if self.draft_rounds else None

    @property
    def waste(self) -> int:
        """Tokens that were verified and rejected, or stood behind a rejected one."""
        return self.verified - self.accepted

    @property
    def acceptance(self) -> list[float | None]:
        """Share of each slot accepted where all earlier slots were; None where none was ever judged."""
        return [accepted / tried if tried else None for accepted, tried in self.accept_by_position]

    @property
    def survival(self) -> list[float]:
        """Running product of the acceptance: how often a draft stood up to each slot."""
        return list(accumulate((accepted or 0.0 for accepted in self.acceptance), mul))


@dataclass
class RunSummary(DraftCounts):
    """Running totals of one reply.

    ``tokens_per_second`` is (tokens − 1) / decode time, since the first token belongs to the prefill. The decode time
    runs from the first token's event to the last round's, so it holds what the reader of the events took in between.
    """

    schedule: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    first_token_at: float | None = None

    def fold(self, event: Event) -> None:
        """Take one event of the reply into account."""
        if isinstance(event, Start):
            self.schedule = event.schedule
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
        elif isinstance(event, Prefill):
            self.prefill_ms = event.ms
        elif isinstance(event, Round):
            self.tokens += len(event.tokens)
            if event.anchor is None:
                self.first_token_at = event.at
            else:
                self.decode_ms = event.at - (self.first_token_at or 0.0)
                self.add(event)

    @property
    def tokens_per_second(self) -> float | None:
        return (self.tokens - 1) / self.decode_ms * 1e3 if self.tokens > 1 and self.decode_ms > 0 else None

    def stats(self) -> dict[str, Any]:
        """The ``stats`` of the end event."""
        return {
            "tokens": self.tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "mean_accepted_length": self.mean_accepted_length,
            "accept_by_position": [list(pair) for pair in self.accept_by_position],
            "ms": {"prefill": self.prefill_ms, "decode": self.decode_ms, **self.ms_by_part},
            "tokens_per_second": self.tokens_per_second,
            "joules": None,
        }

    def stats_line(self) -> str:
        """One line for people: speed, accepted length, schedule, and what the drafts came to.

        The accepted length counts only the rounds with a draft, so how many those were stands beside it.
        """
        speed = self.tokens_per_second
        length = self.mean_accepted_length
        drafted = f" ({self.draft_rounds} rounds with a draft)" if self.draft_rounds < self.rounds else ""
        parts = [
            f"{speed:.1f} tokens/s" if speed is not None else "tokens/s –",
            f"accepted length {length:.2f}{drafted}" if length is not None else "accepted length –",
            f"schedule {self.schedule}",
            f"{self.tokens} tokens in {self.rounds} rounds",
            f"drafted {self.drafted}, verified {self.verified}, accepted {self.accepted}",
            f"prompt {self.prompt_tokens} tokens ({self.cached_tokens} cached) in {self.prefill_ms / 1e3:.2f} s",
        ]
        return " · ".join(parts)
