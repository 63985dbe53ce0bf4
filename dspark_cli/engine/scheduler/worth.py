"""Whether to draft at all: from what drafted rounds really brought, within what may be lost against plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dspark_cli.engine.scheduler.price import Step

MEMORY = 48.0  # drafted rounds over which their value is averaged
PROBE_MEMORY = 24.0  # the same while rounds are plain and probes alone tell of it, and after a reply
PRIOR_VALUE, PRIOR_VARIANCE, PRIOR_ROUNDS = 0.5, 0.25, 2.0
MOST_VALUE, MOST_SQUARE = 0.5, 1.5  # bounds of the two averages, so that a text that was good is given up soon
DOUBT = 1.5  # standard errors by which drafting must fall short before it is given up
FIRST_WAIT, LONGEST_WAIT = 16, 64  # plain rounds between two probes
LASTING = 32  # drafted rounds in a row after which giving up begins with the first wait again
STAKE = 3.0  # plain steps that a reply may lose before it has gained any
MOST_GAINED = 48.0  # gains beyond this are not put at stake again
LEAST_STAKE = 1.0  # a stake that was lost is saved up to this before any of it is risked
REFILL = 0.012  # plain steps that each plain step's time adds


@dataclass
class Worth:
    """The decision before the draft. Times here are counted in plain steps.

    ``value`` is the running mean of accepted − λ·(T(1+ℓ) − T(1)) − λ·D over drafted rounds, ``variance`` its
    variance: realised, not predicted, so a confident head that is never right is found out. Where it is below zero
    beyond doubt rounds are plain, with a probe every ``wait`` rounds.

    ``stake`` is what may still be lost. A drafted round takes from it what plain decoding would have been ahead, and
    adds what it gained; time adds a little. A round whose worst case is not covered is cut or not drafted. So from the
    beginning of a reply no more than STAKE + REFILL · its time is ever lost, whatever the head says and the text does.
    """

    value: float = PRIOR_VALUE
    variance: float = PRIOR_VARIANCE
    rounds: float = PRIOR_ROUNDS
    bypassing: bool = False
    wait: int = FIRST_WAIT
    rested: int = 0
    stake: float = STAKE
    drafted: int = 0
    in_a_row: int = 0
    saving: bool = False

    def begin_reply(self) -> None:
        """What earlier replies gained is not put at stake in this one; what they lost is not given back."""
        self.stake = min(self.stake, STAKE)
        self.rounds = min(self.rounds, PROBE_MEMORY)

    def begin(self, step: Step, label_every: int) -> str:
        """``bypass``, ``probe``, ``labels``, or nothing for a round as usual."""
        self.saving = not self.most_rows(step) or (self.saving and self.stake < LEAST_STAKE)
        if self.saving:
            return "bypass"
        if self.bypassing:
            return "probe" if self.rested >= self.wait else "bypass"
        due = label_every and self.drafted and self.drafted % label_every == 0
        return "labels" if due else ""

    def most_rows(self, step: Step) -> int:
        """How many drafted tokens this step may verify: what the stake covers if none of them stands."""
        limit = (self.stake + 1.0) * step.plain_ms - step.draft_ms - step.cut_back_ms * step.replies
        ms, replies = step.ms, step.replies
        if ms[-1] <= limit:
            return len(ms) - 1 - replies
        most = 0
        while ms[replies + most + 1] <= limit:
            most += 1
        return most

    def observe(self, step: Step, accepted: int, cost_ms: float) -> None:
        """A drafted round brought ``accepted`` drafted tokens; draft and step cost ``cost_ms``."""
        self.drafted += 1
        self.stake += (1.0 + REFILL) - cost_ms / step.plain_ms + accepted / step.replies
        self.stake = min(self.stake, MOST_GAINED)
        value = accepted - step.price * (cost_ms - step.plain_ms)
        self.rounds = min(self.rounds + 1.0, PROBE_MEMORY if self.bypassing else MEMORY)
        off = value - self.value
        self.value = min(self.value + off / self.rounds, MOST_VALUE)
        self.variance += (min(off * off, MOST_SQUARE) - self.variance) / self.rounds
        self.in_a_row += 1
        self.rested = self.wait if value > 0.0 else 0  # a good probe calls for another at once
        if self.value + DOUBT * sqrt(self.variance / self.rounds) > 0.0:
            self.bypassing = False
        elif self.bypassing or self.in_a_row < LASTING:
            if self.bypassing and value <= 0.0:
                self.wait = min(2 * self.wait, LONGEST_WAIT)
            self.bypassing = True
        else:
            self.bypassing, self.wait = True, FIRST_WAIT

    def rest(self, step: Step) -> None:
        """A round was plain."""
        self.rested += 1
        self.in_a_row = 0
        self.stake = min(self.stake + REFILL, max(self.stake, STAKE))
