"""The exact law of a reply, by walking every turn that chance can take through the real loop."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from dspark_cli.engine.contracts import Drafter, RandomStream, Request, Scheduler
from dspark_cli.engine.decode_loop import DecodeLoop
from dspark_cli.engine.round import run_round
from dspark_cli.engine.sampling import ReplyLaw, TokenLaw
from dspark_cli.engine.sequence import Sequence
from dspark_cli.events import End, Event, Round, Start
from tests.distribution.reference import reply_law
from tests.fakes.enumerating_stream import EnumeratingStream, explore
from tests.fakes.scripted_target import RecordingCache, TableTarget

Law = dict[tuple[int, ...], float]


class Numbers:
    """A vocabulary whose words are numbers."""

    def piece(self, token: int) -> str:
        return f"{token} "

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str:
        return "".join(map(self.piece, ids))


@dataclass(frozen=True)
class Setup:
    """One way to make one reply; the chance is given later."""

    target: TableTarget
    drafter: Drafter | None
    scheduler: Scheduler
    request: Request

    def sequence(self, stream: RandomStream) -> Sequence:
        request = self.request
        law = ReplyLaw(TokenLaw(request.sampling, request.prompt_ids, self.target.vocab_size), stream, request.detail)
        context = self.drafter.new_context() if self.drafter is not None else None
        return Sequence(
            request, list(request.prompt_ids), self.target.new_cache(), context, law,
            context_length=self.target.context_length,
        )  # fmt: skip

    def events(self, sequence: Sequence) -> Iterator[Event]:
        request, drafter = self.request, self.drafter
        start = Start(
            request=request.id, model="table", drafter=None, drafter_kind=drafter.kind if drafter else "none",
            engine="torch", device="cpu", dtype="float64", block_size=drafter.block_size if drafter else 0,
            schedule=self.scheduler.name, prompt_tokens=len(request.prompt_ids), cached_tokens=0,
            context_length=self.target.context_length, sampling={}, seed=request.sampling.seed, threads=1,
            weights="f64",
        )  # fmt: skip
        loop = DecodeLoop(self.target, self.drafter, Numbers())
        return loop.run(sequence, self.scheduler, start, lambda: False)

    def first_token(self, stream: RandomStream) -> Sequence:
        """A reply whose prompt has been read and whose first token is drawn."""
        sequence = self.sequence(stream)
        for event in self.events(sequence):
            if isinstance(event, Round):
                break
        return sequence

    def whole(self, stream: RandomStream) -> End:
        """The last event of the whole reply."""
        *_, end = self.events(self.sequence(stream))
        assert isinstance(end, End)
        return end

    def truth(self, tokens: int) -> Law:
        """What the joint law of the first ``tokens`` output tokens has to be, straight from the table."""
        request = self.request
        return reply_law(
            request.sampling, lambda ids: self.target.logits_after(ids).tolist(), request.prompt_ids,
            min(tokens, request.max_new_tokens), stop_ids=request.stop_ids,
        )  # fmt: skip


def exact_law(setup: Setup, tokens: int = 3) -> Law:
    """Joint law of the first ``tokens`` output tokens, round by round.

    Between rounds a reply is its ids and nothing else (asserted of the caches), so replies that came to the same ids
    by different turns go on as one.
    """
    law: Law = {}
    waiting: dict[tuple[int, ...], tuple[float, Sequence]] = {}

    def arrive(weight: float, sequence: Sequence) -> None:
        reply = tuple(sequence.reply_ids)
        if sequence.finished or len(reply) >= tokens:
            law[reply[:tokens]] = law.get(reply[:tokens], 0.0) + weight
            return
        assert isinstance(sequence.cache, RecordingCache)
        assert sequence.cache.ids == sequence.ids[:-1]
        assert sequence.context is None or sequence.context.length == len(sequence.ids) - 1
        waiting[reply] = (waiting[reply][0] + weight if reply in waiting else weight, sequence)

    with torch.inference_mode():
        for weight, sequence in explore(setup.first_token):
            arrive(weight, sequence)
        while waiting:
            so_far, before = waiting.pop(min(waiting, key=len))
            for weight, sequence in explore(lambda stream, before=before: _next_round(setup, before, stream)):
                arrive(so_far * weight, sequence)
    return law


def _next_round(setup: Setup, before: Sequence, stream: EnumeratingStream) -> Sequence:
    shared = (before.request, before.request.sampling)
    kept: dict[int, object] = {id(value): value for value in shared} | {id(before.law.stream): stream}
    sequence = copy.deepcopy(before, kept)
    run_round(setup.target, setup.drafter, setup.scheduler, [sequence])
    return sequence


def complete_law(setup: Setup, tokens: int = 3) -> Law:
    """The same by running every possible reply from its start event to its end event."""
    law: Law = {}
    for weight, end in explore(setup.whole):
        law[end.output_ids[:tokens]] = law.get(end.output_ids[:tokens], 0.0) + weight
    return law
