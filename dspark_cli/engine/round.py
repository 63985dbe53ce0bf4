"""One round of speculative decoding: draft, plan, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from dspark_cli.engine.acceptance import judge_greedy, judge_sampled
from dspark_cli.engine.contracts import Draft, Drafter, Plan, RoundState, Rows, Scheduler, Target, Verdict, Verification
from dspark_cli.engine.sequence import Sequence
from dspark_cli.engine.stopping import keep_until_stop
from dspark_cli.events import RoundTimes


@dataclass(frozen=True)
class RoundResult:
    """What one round did to one sequence.

    ``rows`` [verified+1, V] are what the drafted tokens were judged by: the target's distributions, or its logits
    when greedy; kept only where the request asks for detail.
    """

    position: int
    anchor: int
    draft: Draft
    plan: Plan
    verdict: Verdict
    tokens: tuple[int, ...]
    ms: RoundTimes
    rows: Tensor | None = None


@dataclass(frozen=True)
class _Planned:
    state: RoundState
    draft: Draft
    plan: Plan
    draft_ms: float
    plan_ms: float


def run_round(
    target: Target, drafter: Drafter | None, scheduler: Scheduler, sequences: Seq[Sequence]
) -> list[RoundResult]:
    """Advance every sequence by one round, all of them verified in one pass of the target.

    Each sequence gains its accepted tokens and one more (less what a stop or limit cuts).
    """
    began = perf_counter()
    planned_rounds = [_draft_and_plan(drafter, scheduler, sequence) for sequence in sequences]
    verify_began = perf_counter()
    rows = [
        Rows(sequence.cache, (sequence.anchor, *round_.draft.tokens[: round_.plan.planned]))
        for sequence, round_ in zip(sequences, planned_rounds, strict=True)
    ]
    taps = drafter.taps if drafter is not None and any(s.context is not None for s in sequences) else ()
    verifications = target.forward(rows, taps)
    verify_ms = (perf_counter() - verify_began) * 1e3
    return [
        _settle(drafter, sequence, round_, verification, verify_ms, began)
        for sequence, round_, verification in zip(sequences, planned_rounds, verifications, strict=True)
    ]


def _draft_and_plan(drafter: Drafter | None, scheduler: Scheduler, sequence: Sequence) -> _Planned:
    sequence.check_caches()
    state = sequence.state(drafter.block_size if drafter is not None else 0)
    began = perf_counter()
    intent = scheduler.begin(state)
    intended = perf_counter()
    if drafter is None or sequence.context is None:
        reason = intent.reason if not intent.slots and intent.reason == "off" else "no-drafter"
        return _Planned(state, Draft(), Plan(0, reason), 0.0, (intended - began) * 1e3)
    if not intent.slots:
        return _Planned(state, Draft(), Plan(0, intent.reason), 0.0, (intended - began) * 1e3)
    draft = drafter.draft(sequence.context, sequence.anchor, sequence.law, intent.slots)
    drafted = perf_counter()
    plan = scheduler.plan(state, draft) if draft.tokens else Plan(0, "no-match")
    assert 0 <= plan.planned <= min(len(draft.tokens), state.room)
    planned = perf_counter()
    return _Planned(state, draft, plan, (drafted - intended) * 1e3, (intended - began + planned - drafted) * 1e3)


def _judge(sequence: Sequence, round_: _Planned, logits: Tensor) -> tuple[Verdict, Tensor]:
    verified = round_.plan.planned
    drafted = round_.draft.tokens[:verified]
    law = sequence.law
    stops = sequence.request.stop_ids
    if law.greedy:
        return judge_greedy(law.greedy_tokens(logits, drafted), drafted, stops), logits
    q = round_.draft.q[:verified] if round_.draft.q is not None else None
    p = law.probabilities(logits, drafted)
    return judge_sampled(p, drafted, q, stops, law.stream), p


def _settle(
    drafter: Drafter | None,
    sequence: Sequence,
    round_: _Planned,
    verification: Verification,
    verify_ms: float,
    began: float,
) -> RoundResult:
    accept_began = perf_counter()
    position, anchor = sequence.position, sequence.anchor
    verdict, rows = _judge(sequence, round_, verification.logits)
    commit_began = perf_counter()
    accepted = round_.draft.tokens[: verdict.accepted]
    following = () if verdict.next_token is None else (verdict.next_token,)
    tokens = keep_until_stop(sequence, (*accepted, *following))
    _commit(drafter, sequence, tokens, verdict.accepted, verification)
    ended = perf_counter()
    ms = RoundTimes(
        draft=round_.draft_ms,
        plan=round_.plan_ms,
        verify=verify_ms,
        accept=(commit_began - accept_began) * 1e3,
        commit=(ended - commit_began) * 1e3,
        total=(ended - began) * 1e3,
    )
    kept = rows if sequence.request.detail else None
    return RoundResult(position, anchor, round_.draft, round_.plan, verdict, tokens, ms, kept)


def _commit(
    drafter: Drafter | None, sequence: Sequence, tokens: tuple[int, ...], accepted: int, verification: Verification
) -> None:
    """Keep the rows of the anchor and of the accepted tokens that stand; give the drafter the same rows."""
    position, anchor = sequence.position, sequence.anchor
    read = (anchor, *tokens[:accepted])
    sequence.cache.truncate(position + len(read))
    if drafter is not None and sequence.context is not None:
        taps = verification.taps[: len(read)] if verification.taps is not None else None
        drafter.extend(sequence.context, read, taps)
    sequence.ids.extend(tokens)
    sequence.law.commit(tokens)
    sequence.rounds += 1
