"""A whole reply: read the prompt, run rounds to the end, and tell it in events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from dspark_cli.engine.contracts import Drafter, Rows, Scheduler, Target
from dspark_cli.engine.round import RoundResult, run_round
from dspark_cli.engine.sequence import Sequence
from dspark_cli.engine.stopping import keep_until_stop
from dspark_cli.events import End, Event, Prefill, Round, RoundTimes, Start, Text
from dspark_cli.trace import RunSummary

PREFILL_CHUNK = 512  # rows read between two looks at the cancel flag and two progress events
TOP_ALTERNATIVES = 5


class Vocabulary(Protocol):
    """Words for ids, for people; ``continues`` keeps a space that leads."""

    def piece(self, token: int) -> str: ...

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str: ...


class DecodeLoop:
    """Runs sequences on one target and, perhaps, one drafter."""

    def __init__(self, target: Target, drafter: Drafter | None, vocabulary: Vocabulary) -> None:
        self.target = target
        self.drafter = drafter
        self.vocabulary = vocabulary

    def run(
        self, sequence: Sequence, scheduler: Scheduler, start: Start, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """The events of one reply, from ``start`` to its end event.

        Args:
            sequence: prompt ids whose first ``cache.length`` tokens have been read already.
            scheduler: chooses the verification lengths.
            start: the reply's first event.
            cancelled: asked between steps; True ends the reply with reason ``cancelled``.
        """
        began = perf_counter()
        summary = RunSummary()

        def tell(event: Event) -> Event:
            timed = replace(event, at=(perf_counter() - began) * 1e3)
            summary.fold(timed)
            return timed

        yield tell(start)
        text: list[str] = []
        try:
            for event in self._events(sequence, scheduler, cancelled):
                yield tell(event)
                if isinstance(event, Round) and (delta := self._shown(sequence)):
                    text.append(delta)
                    yield tell(Text(request=sequence.request.id, delta=delta))
        except Exception:
            yield tell(self._end(sequence, "error", text, summary))
            raise
        if sequence.sink is not None and (rest := sequence.sink.finish()):
            text.append(rest)
            yield tell(Text(request=sequence.request.id, delta=rest))
        yield tell(self._end(sequence, sequence.finished, text, summary))

    def _events(self, sequence: Sequence, scheduler: Scheduler, cancelled: Callable[[], bool]) -> Iterator[Event]:
        logits: Tensor | None = None
        for event, logits in self._read_prompt(sequence):  # noqa: B007 (the last logits are wanted)
            yield event
            if cancelled():
                sequence.finished = "cancelled"
                return
        assert logits is not None
        yield self._first_token(sequence, logits)
        while not sequence.finished:
            if cancelled():
                sequence.finished = "cancelled"
                return
            with torch.inference_mode():
                (result,) = run_round(self.target, self.drafter, scheduler, [sequence])
            yield self._round_event(sequence, result)

    @staticmethod
    def _shown(sequence: Sequence) -> str:
        return sequence.sink.take() if sequence.sink is not None else ""

    @staticmethod
    def _end(sequence: Sequence, reason: str, text: list[str], summary: RunSummary) -> End:
        return End(
            request=sequence.request.id,
            reason=reason,
            output_ids=tuple(sequence.reply_ids),
            text="".join(text),
            stats=summary.stats(),
        )

    def _read_prompt(self, sequence: Sequence) -> Iterator[tuple[Event, Tensor]]:
        """Feed the unread part of the prompt in chunks; yields progress and the last row's logits [1, V]."""
        began = perf_counter()
        ids = sequence.request.prompt_ids
        taps = self.drafter.taps if self.drafter is not None and sequence.context is not None else ()
        while sequence.cache.length < len(ids):
            first = sequence.cache.length
            chunk = ids[first : first + PREFILL_CHUNK]
            with torch.inference_mode():
                (read,) = self.target.forward([Rows(sequence.cache, chunk, len(chunk) - 1)], taps)
                if self.drafter is not None and sequence.context is not None:
                    self.drafter.extend(sequence.context, chunk, read.taps)
            ms = (perf_counter() - began) * 1e3
            yield Prefill(request=sequence.request.id, done=first + len(chunk), total=len(ids), ms=ms), read.logits

    def _first_token(self, sequence: Sequence, logits: Tensor) -> Round:
        began = perf_counter()
        with torch.inference_mode():
            if sequence.law.greedy:
                token = sequence.law.greedy_tokens(logits, ())[0]
            else:
                token = sequence.law.stream.categorical(sequence.law.probabilities(logits, ())[0])
        position = sequence.position
        tokens = keep_until_stop(sequence, (token,))
        sequence.ids.extend(tokens)
        sequence.law.commit(tokens)
        ms = (perf_counter() - began) * 1e3
        return Round(
            request=sequence.request.id, index=0, position=position, anchor=None, draft=(), confidence=None,
            survival=None, planned=0, verified=0, accepted=0, next_token=token, outcome="bonus", tokens=tokens,
            text=self.vocabulary.decode(tokens, continues=sequence.request.continues), reason="first-token",
            ms=RoundTimes(accept=ms, total=ms),
        )  # fmt: skip

    def _round_event(self, sequence: Sequence, result: RoundResult) -> Round:
        draft, plan, verdict = result.draft, result.plan, result.verdict
        confidence = draft.confidence
        cost = {"predicted_ms": plan.predicted_ms, "expected_tokens": plan.expected_tokens}
        known = {name: value for name, value in cost.items() if value is not None}
        return Round(
            request=sequence.request.id,
            index=sequence.rounds,
            position=result.position,
            anchor=result.anchor,
            draft=draft.tokens,
            confidence=confidence,
            survival=tuple(accumulate(confidence, mul)) if confidence is not None else None,
            planned=plan.planned,
            verified=plan.planned,
            accepted=verdict.accepted,
            next_token=verdict.next_token,
            outcome=verdict.outcome,
            tokens=result.tokens,
            text=self.vocabulary.decode(result.tokens, continues=True),
            reason=plan.reason,
            pieces=tuple(self.vocabulary.piece(token) for token in draft.tokens),
            p=_target_probabilities(sequence.law.greedy, result),
            q=draft.q_drafted,
            theta=plan.theta,
            ms=result.ms,
            cost=known or None,
            top=_alternatives(sequence, result),
        )


def _target_probabilities(greedy: bool, result: RoundResult) -> tuple[float | None, ...] | None:
    """What the target gave each verified token; when greedy, its softmax at temperature 1."""
    if result.rows is None or not result.draft.tokens:
        return None
    verified = result.plan.planned
    index = torch.tensor(result.draft.tokens[:verified], dtype=torch.int64, device=result.rows.device)[:, None]
    values = result.rows[:verified].gather(1, index)[:, 0]
    if greedy:
        values = (values - result.rows[:verified].logsumexp(1)).exp()
    return (*values.tolist(), *[None] * (len(result.draft.tokens) - verified))


def _alternatives(sequence: Sequence, result: RoundResult) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    """The target's likeliest tokens of each verified row, with their probabilities."""
    if result.rows is None or sequence.request.detail < 2:
        return None
    probabilities = result.rows.softmax(1) if sequence.law.greedy else result.rows
    best = probabilities.topk(min(TOP_ALTERNATIVES, probabilities.shape[1]), dim=1)
    return tuple(
        tuple(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
