"""What one timed reply gave, and what the drafts of many replies came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dspark_cli.bench.statistics import share
from dspark_cli.trace import PARTS, DraftCounts, RunSummary


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


class DraftTotals(DraftCounts):
    """Drafts of many replies added up."""

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> DraftTotals:
        totals = cls()
        for sample in samples:
            if sample.summary is not None:
                totals.merge(sample.summary)
        return totals

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
            "wasted": self.waste,
            "accepted_length": self.mean_accepted_length,
            "accept_by_position": [list(pair) for pair in self.accept_by_position],
            "acceptance": self.acceptance,
            "survival": self.survival,
            "ms": dict(self.ms_by_part),
            "time_split": self.time_split,
        }
