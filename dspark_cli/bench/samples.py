"""What one timed reply gave, and what the drafts of many replies came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dspark_cli.bench.statistics import share
from dspark_cli.trace import PARTS, RunSummary


@dataclass(frozen=True)
class Sample:
    """One reply of one mode. ``decode_ms`` runs from the first token to the last, ``first_token_ms`` up to the first.

    ``summary`` holds the drafts; None for modes outside our engine.
    """

    mode: str
    prompt: str
    kind: str
    output_ids: tuple[int, ...]
    decode_ms: float
    first_token_ms: float
    summary: RunSummary | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """None for a reply of one token, which has no decode time."""
        steps = len(self.output_ids) - 1
        return steps / self.decode_ms * 1e3 if steps > 0 and self.decode_ms > 0 else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "prompt": self.prompt,
            "kind": self.kind,
            "tokens": len(self.output_ids),
            "tokens_per_second": self.tokens_per_second,
            "decode_ms": self.decode_ms,
            "first_token_ms": self.first_token_ms,
            "output_ids": list(self.output_ids),
            "stats": self.summary.stats() if self.summary is not None else None,
        }


@dataclass
class DraftTotals:
    """Drafts of many replies added up.

    ``acceptance[k]`` is the share of slot k accepted where all earlier slots were (None where never judged);
    ``survival[k]`` the running product, that is how often a draft stood up to slot k.
    """

    rounds: int = 0
    draft_rounds: int = 0
    draft_round_tokens: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    by_position: list[list[int]] = field(default_factory=list)
    ms_by_part: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> DraftTotals:
        totals = cls()
        for sample in samples:
            if sample.summary is not None:
                totals._add(sample.summary)
        return totals

    def _add(self, summary: RunSummary) -> None:
        self.rounds += summary.rounds
        self.draft_rounds += summary.draft_rounds
        self.draft_round_tokens += summary.draft_round_tokens
        self.drafted += summary.drafted
        self.verified += summary.verified
        self.accepted += summary.accepted
        for slot, (accepted, tried) in enumerate(summary.accept_by_position):
            if slot == len(self.by_position):
                self.by_position.append([0, 0])
            self.by_position[slot][0] += accepted
            self.by_position[slot][1] += tried
        for part in PARTS:
            self.ms_by_part[part] += summary.ms_by_part[part]

    @property
    def accepted_length(self) -> float | None:
        """Committed tokens per round with a draft, counting the corrected or bonus token."""
        return self.draft_round_tokens / self.draft_rounds if self.draft_rounds else None

    @property
    def acceptance(self) -> list[float | None]:
        return [accepted / tried if tried else None for accepted, tried in self.by_position]

    @property
    def survival(self) -> list[float]:
        product, running = 1.0, []
        for accepted in self.acceptance:
            product *= accepted or 0.0
            running.append(product)
        return running

    @property
    def time_split(self) -> dict[str, float]:
        """Share of the decoding time of each part of a round."""
        return dict(zip(PARTS, share([self.ms_by_part[part] for part in PARTS]), strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "rounds_with_draft": self.draft_rounds,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "wasted": self.verified - self.accepted,
            "accepted_length": self.accepted_length,
            "accept_by_position": [list(pair) for pair in self.by_position],
            "acceptance": self.acceptance,
            "survival": self.survival,
            "ms": dict(self.ms_by_part),
            "time_split": self.time_split,
        }
