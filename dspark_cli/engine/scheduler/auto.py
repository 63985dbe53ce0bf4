"""The price-of-time schedule: verify what is worth its time at the long-run rate, draft only where drafting pays.

Tokens per time over a whole reply is a ratio of two sums. What makes it largest is not each round's own ratio but each
round's tokens − λ·time, with λ the long-run rate itself (Dinkelbach). Algorithm 1 maximises each round's ratio, so a
poor round prices time too cheaply, a draft costs nothing, and a stair of the step curve is a wall.

Two decisions a round. :meth:`Auto.begin`, before the draft: whether to draft at all, from what drafted rounds really
brought. :meth:`Auto.plan`, after it: how much to verify. What it decides on slot k rests on what is known before x_k
is drawn, on earlier rounds, on the curve; so the output distribution stays (see ``price.admit``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_cli.engine.contracts import Draft, Intent, Plan, RoundState
from dspark_cli.engine.scheduler.outlook import Outlook
from dspark_cli.engine.scheduler.price import Step, admit, admit_known, admit_many
from dspark_cli.engine.scheduler.sps_curve import SpsCurve
from dspark_cli.engine.scheduler.worth import Worth

RATE_MEMORY = 128.0  # rounds over which tokens and time are averaged
RATE_PRIOR = 8.0  # plain rounds that a new average starts with
DEPTH_GRAIN = 64  # rows of cache within which a step is taken to cost the same


@dataclass
class AutoState:
    """All that the schedule remembers between rounds: plain numbers, no draft. May be kept from reply to reply.

    ``tokens`` and ``ms`` are the moving averages of a step (None before the first), ``rounds`` how many they hold.
    """

    outlook: Outlook
    worth: Worth
    tokens: float | None = None
    ms: float | None = None
    rounds: float = RATE_PRIOR

    @classmethod
    def new(cls, block_size: int) -> AutoState:
        return cls(Outlook.new(block_size), Worth())


class Auto:
    """The schedule of one engine: one price for all its replies.

    Args:
        curve: what a step costs now; :attr:`curve` may be set anew between two rounds, never within one.
        block_size: γ.
        state: what an earlier schedule of the same pair remembered.
        label_every: every so many drafted rounds the whole block is verified, for labels of late slots (0: never).
            Only where drafting pays.
    """

    name = "auto"

    def __init__(
        self, curve: SpsCurve, block_size: int, state: AutoState | None = None, *, label_every: int = 0
    ) -> None:
        self.block_size = block_size
        self.label_every = label_every
        self.state = state or AutoState.new(block_size)
        self._times: dict[int, list[float]] = {}
        self.curve = curve
        self._step = self._prices(1, 0, 0)
        self._kind = ""
        self._shown: list[Sequence[float]] = []

    @property
    def curve(self) -> SpsCurve:
        """What a step costs now."""
        return self._curve

    @curve.setter
    def curve(self, curve: SpsCurve) -> None:
        self._curve = curve
        self._times.clear()

    def _prices(self, replies: int, slots: int, position: int) -> Step:
        """The prices of a step, at λ: the long-run rate in tokens per ms, never below that of plain decoding."""
        place, most = position // DEPTH_GRAIN, replies + slots
        ms = self._times.get(place)
        if ms is None or len(ms) <= most:
            ms = self._times[place] = [0.0, *self._curve.steps_ms(most, place * DEPTH_GRAIN)]
        price, state = replies / ms[replies], self.state
        if state.tokens is not None and state.ms:
            price = max(price, state.tokens / state.ms)
        return Step(ms[: most + 1], self._curve.draft_ms, self._curve.cut_back_ms, price, replies)

    def begin_reply(self) -> None:
        """A new reply begins: what earlier ones gained is no longer at stake."""
        self.state.worth.begin_reply()

    # One reply

    def begin(self, state: RoundState) -> Intent:
        return self.begin_step([state])[0]

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        return self.plan_step([state], [draft])[0]

    # All replies of one step

    def begin_step(self, states: Sequence[RoundState]) -> list[Intent]:
        """Whether to draft in this step: for all replies or for none."""
        replies = len(states)
        position = sum(state.position for state in states) // replies
        slots = sum(min(self.block_size, state.room) for state in states)
        self._step = step = self._prices(replies, slots, position)
        self._kind = self.state.worth.begin(step, self.label_every) if slots else "bypass"
        self._shown = []
        if self._kind == "bypass":
            return [Intent(0, "bypass" if state.room else state.limit) for state in states]
        return [Intent(min(self.block_size, state.room), state.limit) for state in states]

    def plan_step(self, states: Sequence[RoundState], drafts: Sequence[Draft]) -> list[Plan]:
        """How much of each draft to verify. A draft without confidences is judged by how often its slots stood."""
        outlook, step = self.state.outlook, self._step
        self._shown = [outlook.confidence(draft) for draft in drafts]
        trusted = [outlook.trusted(shown) for shown in self._shown]
        budget = self.state.worth.most_rows(step)
        if self._kind == "labels" and sum(map(len, trusted)) <= budget:
            lengths = [len(row) for row in trusted]
        elif len(drafts) > 1:
            lengths = admit_many(trusted, step, outlook, budget)
        elif drafts[0].q is None:
            lengths = [admit_known(trusted[0], step, budget)]
        else:
            lengths = [admit(trusted[0], step, outlook, budget)]
        rows = len(drafts) + sum(lengths)
        full = rows - len(drafts) >= budget
        return [
            self._plan(state, row, length, rows, full)
            for state, row, length in zip(states, trusted, lengths, strict=True)
        ]

    def _plan(self, state: RoundState, row: Sequence[float], length: int, rows: int, full: bool) -> Plan:
        reason = self._kind
        if not reason and length == len(row):
            reason = "whole-block" if state.room >= self.block_size else state.limit
        elif not reason:
            reason = "cut-by-budget" if full else "cut-by-gain"
        expected, survival = 1.0, 1.0
        for confidence in row[:length]:
            survival *= confidence
            expected += survival
        return Plan(length, reason, expected, self._step.ms[rows])

    # After the commit

    def observe(self, verified: Sequence[int], accepted: Sequence[int], tokens: int, ms: float | None = None) -> None:
        """What became of the step that was planned last; of a step without a draft too.

        Args:
            verified: for each reply how many drafted tokens were verified.
            accepted: how many of them stood.
            tokens: committed by all replies together.
            ms: how long draft and step took; None: what the curve says, so that a slowdown of everything that the
                curve does not know yet changes nothing.
        """
        state, step = self.state, self._step
        drafted = bool(self._shown)  # by a plan; a drafter that found nothing to draft took no time worth counting
        rows, stood = step.replies + sum(verified), sum(accepted)
        rejected = sum(a < v for a, v in zip(accepted, verified, strict=True))
        cost = step.ms[rows] + step.cut_back_ms * rejected + (step.draft_ms if drafted else 0.0)
        if drafted:
            state.worth.observe(step, stood, cost)
            if self._kind == "probe" and not sum(verified):
                state.outlook.fade()
            for shown, v, a in zip(self._shown, verified, accepted, strict=True):
                state.outlook.observe(shown, v, a)
        else:
            state.worth.rest(step)
        self._shown = []
        if state.tokens is None or state.ms is None:
            state.tokens, state.ms = float(step.replies), step.ms[step.replies]
        state.rounds = min(state.rounds + 1.0, RATE_MEMORY)
        rate = 1.0 / state.rounds
        state.tokens += rate * (tokens - state.tokens)
        state.ms += rate * ((cost if ms is None else ms) - state.ms)
