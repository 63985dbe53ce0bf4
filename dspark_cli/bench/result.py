"""What a bench found: the raw replies, and the figures that follow from them. JSON and table are made from this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dspark_cli.bench.identity import DIFFERENT, Identity
from dspark_cli.bench.modes import PLAIN, Unavailable
from dspark_cli.bench.samples import DraftTotals, Sample
from dspark_cli.bench.statistics import PairedRatio, Spread, paired_ratio
from dspark_cli.bench.step_curve import StepCurve

RESULT_VERSION = 1
ALL = "all"
BUSY_LOAD = 0.7


@dataclass(frozen=True)
class Machine:
    """Where a bench ran and on what. ``load`` is what other programs did when it began: busy processes in a minute.

    None where the system does not tell.
    """

    version: str
    date: str
    cpu: str
    cores: int
    load: float | None
    device: str
    threads: int
    torch: str
    python: str
    model: str
    weights: str
    dtype: str
    drafter: str | None
    drafter_kind: str
    block_size: int

    @property
    def busy(self) -> bool:
        """Whether other programs took a good part of a core: a step waits for its slowest thread."""
        return self.load is not None and self.load > BUSY_LOAD


@dataclass(frozen=True)
class Comparison:
    """Speed of ``mode`` against ``against`` over one kind of prompts, or over ``all``."""

    mode: str
    against: str
    kind: str
    ratio: PairedRatio

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "against": self.against,
            "kind": self.kind,
            **vars(self.ratio),
            "verdict": self.ratio.verdict,
        }


@dataclass
class BenchResult:
    """Filled while a bench runs, so that an interrupted one still has all that was measured.

    ``modes`` names the modes in the order of the tables. ``planned`` is the number of prompts that every mode was
    to answer. ``stopped`` is empty, ``time`` (the time was up) or ``interrupted``.
    """

    machine: Machine
    max_new_tokens: int
    modes: tuple[str, ...]
    planned: int
    quick: bool = False
    samples: list[Sample] = field(default_factory=list)
    steps: StepCurve | None = None
    identities: list[Identity] = field(default_factory=list)
    unavailable: list[Unavailable] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of prompts, in the order in which they were first measured."""
        return tuple(dict.fromkeys(sample.kind for sample in self.samples))

    def of(self, mode: str, kind: str = ALL) -> list[Sample]:
        """The replies of one mode, to prompts of one kind or to all."""
        return [s for s in self.samples if s.mode == mode and kind in (ALL, s.kind)]

    def complete(self) -> int:
        """How many prompts every mode has answered."""
        return len(set.intersection(*({s.prompt for s in self.of(mode)} for mode in self.modes)))

    def speed(self, mode: str, kind: str = ALL) -> Spread | None:
        """Tokens a second."""
        return Spread.of(s.tokens_per_second for s in self.of(mode, kind) if s.tokens_per_second is not None)

    def first_token(self, mode: str, kind: str = ALL) -> Spread | None:
        """Milliseconds to the first token, the prompt read from its beginning."""
        return Spread.of(sample.first_token_ms for sample in self.of(mode, kind))

    def compare(self, mode: str, against: str, kind: str = ALL) -> Comparison | None:
        """Paired by prompt; prompts that one of the two has not answered with two tokens or more do not count."""
        base = {s.prompt: s.tokens_per_second for s in self.of(against, kind)}
        both = ((s.tokens_per_second, base.get(s.prompt)) for s in self.of(mode, kind))
        ratio = paired_ratio((a, b) for a, b in both if a is not None and b is not None)
        return Comparison(mode, against, kind, ratio) if ratio is not None else None

    @property
    def comparisons(self) -> list[Comparison]:
        """Every mode against plain decoding, by kind and over all prompts."""
        others = [mode for mode in self.modes if mode != PLAIN]
        found = (self.compare(mode, PLAIN, kind) for mode in others for kind in (*self.kinds, ALL))
        return [comparison for comparison in found if comparison is not None]

    @property
    def lossless(self) -> bool:
        """No mode of this engine gave another greedy token than plain decoding where rounding could not decide."""
        ours = {sample.mode for sample in self.samples if sample.summary is not None}
        return not any(item.verdict == DIFFERENT and item.mode in ours for item in self.identities)

    def to_dict(self) -> dict[str, Any]:
        """Everything, figures and raw replies, ready for JSON."""
        return {
            "bench": RESULT_VERSION,
            **vars(self.machine),
            "quick": self.quick,
            "max_new_tokens": self.max_new_tokens,
            "seconds": self.seconds,
            "stopped": self.stopped or None,
            "prompts": {"planned": self.planned, "answered": self.complete(), "too_long": self.left_out},
            "modes": [self._mode_dict(mode) for mode in self.modes],
            "unavailable": [vars(item) for item in self.unavailable],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "identity": [identity.to_dict() for identity in self.identities],
            "lossless": self.lossless,
            "steps": self.steps.to_dict() if self.steps is not None else None,
            "replies": [sample.to_dict() for sample in self.samples],
        }

    def _mode_dict(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "kinds": {kind: self._figures(mode, kind) for kind in (*self.kinds, ALL)}}

    def _figures(self, mode: str, kind: str) -> dict[str, Any]:
        samples = self.of(mode, kind)
        drafts = DraftTotals.of(samples)
        return {
            "replies": len(samples),
            "tokens": sum(len(sample.output_ids) for sample in samples),
            "tokens_per_second": _spread_dict(self.speed(mode, kind)),
            "first_token_ms": _spread_dict(self.first_token(mode, kind)),
            "drafts": drafts.to_dict() if drafts.rounds else None,
        }


def _spread_dict(spread: Spread | None) -> dict[str, Any] | None:
    return vars(spread) if spread is not None else None
