"""Static confidence threshold: verify up to, not including, the first calibrated confidence below it."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_cli.engine.contracts import Draft, Intent, Plan, RoundState


@dataclass(frozen=True)
class Threshold:
    """Cut the draft in front of the first slot whose conditional confidence is below ``threshold``.

    The confidence of slot k is known before x_k is drawn, so the cut leaves the output distribution alone.
    """

    threshold: float

    @property
    def name(self) -> str:
        return f"threshold:{self.threshold:g}"

    def begin(self, state: RoundState) -> Intent:
        return Intent(min(state.block_size, state.room), state.limit)

    def plan(self, state: RoundState, draft: Draft) -> Plan:
        if draft.confidence is None:
            raise ValueError("a threshold needs confidences; parse_schedule refuses drafters without a head")
        for slot, confidence in enumerate(draft.confidence):
            if confidence < self.threshold:
                return Plan(slot, "cut-by-threshold")
        return Plan(len(draft.tokens), "whole-block" if state.room >= state.block_size else state.limit)
