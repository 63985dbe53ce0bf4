"""Static lengths: never draft, or verify the same number of drafted tokens every round."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_cli.engine.contracts import Draft, Intent, Plan, RoundState


@dataclass(frozen=True)
class Off:
    """Plain decoding: one token a step."""

    name: str = "off"

    def begin(self, state: RoundState) -> Intent:
        return Intent(0, "off")

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        return Plan(0, "off")


@dataclass(frozen=True)
class Fixed:
    """Verify ``length`` drafted tokens every round; a length above the block size means the block size."""

    length: int

    @property
    def name(self) -> str:
        return f"fixed:{self.length}"

    def begin(self, state: RoundState) -> Intent:
        wanted = min(self.length, state.block_size)
        if wanted and not state.room:
            return Intent(0, state.limit)
        return Intent(min(wanted, state.room), "fixed")

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        wanted = min(self.length, state.block_size)
        if wanted > state.room:
            return Plan(len(draft.tokens), state.limit)
        return Plan(len(draft.tokens), "whole-block" if wanted == state.block_size else "fixed")
