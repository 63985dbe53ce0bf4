"""The loop end to end on scripted parts: exact limits, stops in every slot, caches, events."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark_cli.engine.contracts import Cache, Draft, Drafter, DraftLaw, Request, Sampling, Scheduler
from dspark_cli.engine.decode_loop import DecodeLoop
from dspark_cli.engine.round import run_round
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from dspark_cli.engine.scheduler.policy import parse_schedule
from dspark_cli.engine.sequence import Sequence
from dspark_cli.events import End, Event, Prefill, Round, Start, Text, from_json, to_json
from tests.fakes.scripted_drafter import TableDrafter
from tests.fakes.scripted_target import RecordingCache, TableTarget

GREEDY = Sampling()


class Letters:
    """Id n is the n-th letter."""

    def piece(self, token: int) -> str:
        return chr(ord("a") + token)

    def decode(self, ids: list[int], *, continues: bool = False) -> str:
        return "".join(self.piece(token) for token in ids)


class LetterSink:
    """A text sink that looks for stop strings the plain way and holds nothing back but what could begin one."""

    def __init__(self, stop_strings: Seq[str] = ()) -> None:
        self._stops = stop_strings
        self._text = ""
        self._given = 0
        self._done = False

    def push(self, token: int) -> bool:
        assert not self._done, "pushed beyond the stop"
        self._text += Letters().piece(token)
        for stop in self._stops:
            if self._text.endswith(stop):
                self._text = self._text.removesuffix(stop)
                self._done = True
        return self._done

    def take(self) -> str:
        return ""

    def finish(self) -> str:
        return self._text


class Oracle:
    """Drafts what the target will say, wrong from slot ``wrong`` on."""

    kind, taps, has_confidence = "sequential", (1,), False

    def __init__(self, target: TableTarget, block_size: int = 5, wrong: int | None = None) -> None:
        self.target, self.block_size, self.wrong = target, block_size, wrong

    def new_context(self) -> RecordingCache:
        return RecordingCache()

    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        assert isinstance(context, RecordingCache)
        assert taps is not None
        assert taps.argmax(1).tolist() == list(ids), "taps of other rows"
        context.ids.extend(ids)

    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        assert isinstance(context, RecordingCache)
        ids = [*context.ids, anchor]
        for slot in range(slots):
            best = int(self.target.logits_after(ids).argmax())
            ids.append((best + 1) % self.target.vocab_size if slot == self.wrong else best)
        return Draft(tuple(ids[len(context.ids) + 1 :]))


def greedy_ids(target: TableTarget, prompt: Seq[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(target.logits_after(ids).argmax()))
    return ids[len(prompt) :]


def make(
    target: TableTarget,
    drafter: Drafter | None,
    prompt: Seq[int],
    *,
    sampling: Sampling = GREEDY,
    sink: LetterSink | None = None,
    max_new_tokens: int = 20,
    stop_ids: frozenset[int] = frozenset(),
    detail: int = 1,
) -> Sequence:
    request = Request("r", tuple(prompt), sampling, max_new_tokens, stop_ids, detail=detail)
    law = ReplyLaw(TokenLaw(sampling, prompt, target.vocab_size), SeededStream(sampling.seed))
    context = drafter.new_context() if drafter is not None else None
    return Sequence(request, list(prompt), target.new_cache(), context, law, sink, context_length=target.context_length)


def start_event(sequence: Sequence) -> Start:
    return Start(
        request="r", model="m", drafter=None, drafter_kind="none", engine="torch", device="cpu", dtype="float64",
        block_size=5, schedule="", prompt_tokens=sequence.prompt_tokens, cached_tokens=0, context_length=64,
        sampling={}, seed=0, threads=1, weights="f64",
    )  # fmt: skip


def play(
    target: TableTarget, drafter: Drafter | None, sequence: Sequence, schedule: str = "fixed:9"
) -> tuple[list[Event], End]:
    loop = DecodeLoop(target, drafter, Letters())
    events = list(loop.run(sequence, parse_schedule(schedule), start_event(sequence), lambda: False))
    end = events[-1]
    assert isinstance(end, End)
    return events, end


def rounds_of(events: Seq[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def wide_target(seed: int = 3) -> TableTarget:
    return TableTarget(vocab_size=9, seed=seed, order=3, context_length=64)


@given(st.integers(0, 50), st.integers(1, 24), st.integers(0, 6), st.sampled_from([0, 1, 2, 4, None]))
def test_greedy_output_is_the_targets_own_and_exactly_as_long_as_asked(
    seed: int, limit: int, length: int, wrong: int | None
) -> None:
    target = wide_target(seed)
    drafter = Oracle(target, wrong=wrong)
    _, end = play(target, drafter, make(target, drafter, [1, 2], max_new_tokens=limit), f"fixed:{length}")
    assert list(end.output_ids) == greedy_ids(target, [1, 2], limit)
    assert end.reason == "length"


@pytest.mark.parametrize("slot", range(6))
def test_a_stop_id_in_any_slot_of_an_accepted_block_ends_there(slot: int) -> None:
    # Token 0 is drawn from the prefill; slots 1..5 of the first block follow, then the bonus token.
    for seed in range(200):
        target = wide_target(seed)
        said = greedy_ids(target, [1, 2], 8)
        stop = said[1 + slot]
        if stop not in said[: 1 + slot]:
            break
    drafter = Oracle(target)
    sequence = make(target, drafter, [1, 2], stop_ids=frozenset([stop]))
    events, end = play(target, drafter, sequence)
    assert list(end.output_ids) == said[: 2 + slot]
    assert end.reason == "stop"
    last = rounds_of(events)[-1]
    if slot < 5:
        assert (last.outcome, last.next_token, last.accepted) == ("stop", None, slot + 1)
    else:
        assert (last.outcome, last.next_token, last.accepted) == ("bonus", stop, 5)
    assert last.tokens == end.output_ids[1:]
    assert sequence.cache.length <= len(sequence.ids)
    assert sequence.cache.ids == sequence.ids[: sequence.cache.length]  # type: ignore[attr-defined]


def test_a_stop_id_as_the_first_token_ends_at_once() -> None:
    target = wide_target()
    drafter = Oracle(target)
    first = greedy_ids(target, [1, 2], 1)
    events, end = play(target, drafter, make(target, drafter, [1, 2], stop_ids=frozenset(first)))
    assert list(end.output_ids) == first
    assert len(rounds_of(events)) == 1


@pytest.mark.parametrize("at", range(1, 8))
def test_a_stop_string_ends_the_reply_inside_a_block(at: int) -> None:
    target = wide_target(11)
    said = greedy_ids(target, [1, 2], 12)
    text = Letters().decode(said)
    stop = text[at : at + 3]
    first = text.index(stop)
    drafter = Oracle(target)
    sequence = make(target, drafter, [1, 2], sink=LetterSink([stop]))
    _, end = play(target, drafter, sequence)
    assert (end.reason, end.text) == ("stop_string", text[:first])
    assert list(end.output_ids) == said[: first + 3]
    assert sequence.cache.length < len(sequence.ids) + 1
    assert sequence.cache.length == sequence.context.length  # type: ignore[union-attr]


def test_the_context_is_never_exceeded_and_its_end_is_said() -> None:
    target = TableTarget(vocab_size=9, seed=5, order=2, context_length=12)
    drafter = Oracle(target)
    events, end = play(target, drafter, make(target, drafter, [1, 2, 3], max_new_tokens=50))
    assert (end.reason, len(end.output_ids)) == ("context", 9)
    assert list(end.output_ids) == greedy_ids(target, [1, 2, 3], 9)
    assert rounds_of(events)[-1].reason in ("context-limit", "whole-block")


def test_forced_rejections_leave_caches_of_a_fresh_prefill() -> None:
    target = wide_target(8)
    drafter = Oracle(target, wrong=2)
    sequence = make(target, drafter, [1, 2], max_new_tokens=30)
    play(target, drafter, sequence)
    assert sequence.cache.ids == sequence.ids[:-1]  # type: ignore[attr-defined]
    assert sequence.context.ids == sequence.ids[:-1]  # type: ignore[union-attr]


def test_interleaved_sequences_give_what_each_gives_alone() -> None:
    target = wide_target(4)
    drafter = TableDrafter(9, 5, block_size=4)
    samplings = [Sampling(temperature=0.9, seed=5), Sampling(temperature=0.7, top_p=0.8, seed=6), Sampling()]
    prompts = [[1, 2], [3], [4, 5, 6, 7]]
    alone = [
        play(target, drafter, make(target, drafter, prompt, sampling=sampling))[1].output_ids
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    together = [make(target, drafter, p, sampling=s) for p, s in zip(prompts, samplings, strict=True)]
    loop = DecodeLoop(target, drafter, Letters())
    for sequence in together:  # the first token only
        for event in loop.run(sequence, parse_schedule("fixed:4"), start_event(sequence), lambda: False):
            if isinstance(event, Round):
                break
    scheduler: Scheduler = parse_schedule("fixed:4")
    while running := [sequence for sequence in together if not sequence.finished]:
        run_round(target, drafter, scheduler, running)
    assert [tuple(sequence.reply_ids) for sequence in together] == alone
    assert max(len(widths) for widths in target.forward_widths) == 3, "they were never read together"


def test_events_tell_the_reply_in_order_and_survive_json() -> None:
    target = wide_target(2)
    drafter = TableDrafter(9, 5, block_size=4)
    sequence = make(target, drafter, [1, 2], sink=LetterSink(), sampling=Sampling(temperature=1.0, seed=3), detail=2)
    events, end = play(target, drafter, sequence, "threshold:0.4")
    assert [type(event) for event in events[:3]] == [Start, Prefill, Round]
    assert [from_json(to_json(event)) for event in events] == events
    assert all(later.at >= earlier.at for earlier, later in pairwise(events))
    rounds = rounds_of(events)
    assert tuple(token for event in rounds for token in event.tokens) == end.output_ids
    assert "".join(event.delta for event in events if isinstance(event, Text)) == end.text
    first = rounds[0]
    assert (first.index, first.anchor, first.position, first.reason) == (0, None, 1, "first-token")
    position = 2
    for index, event in enumerate(rounds[1:], start=1):
        assert (event.index, event.position) == (index, position)
        assert event.verified <= len(event.draft)
        assert event.p is not None or not event.draft
        if event.draft:
            assert event.p is not None
            assert [value is not None for value in event.p] == [k < event.verified for k in range(len(event.draft))]
            assert event.confidence is not None
            cut = [k for k, c in enumerate(event.confidence) if c < 0.4]
            assert event.planned == (cut[0] if cut else len(event.draft))
            assert event.top is not None
            assert len(event.top) == event.verified + 1
        position += len(event.tokens)


def test_probabilities_of_a_greedy_round_are_the_softmax_of_the_target() -> None:
    target = wide_target(2)
    drafter = Oracle(target, wrong=2)
    events, _ = play(target, drafter, make(target, drafter, [1, 2]))
    event = rounds_of(events)[1]
    ids = [1, 2, *rounds_of(events)[0].tokens]
    for token, chance in zip(event.draft, event.p or (), strict=True):
        assert chance == pytest.approx(float(target.logits_after(ids).softmax(0)[token]), abs=1e-12)
        ids.append(token)


def test_cancelling_keeps_what_came() -> None:
    target = wide_target()
    drafter = Oracle(target)
    sequence = make(target, drafter, [1, 2], max_new_tokens=50)
    asked = iter([False] * 4 + [True] * 9)
    loop = DecodeLoop(target, drafter, Letters())
    events = list(loop.run(sequence, parse_schedule("fixed:2"), start_event(sequence), lambda: next(asked)))
    end = events[-1]
    assert isinstance(end, End)
    assert end.reason == "cancelled"
    assert list(end.output_ids) == greedy_ids(target, [1, 2], len(end.output_ids))
    assert len(end.output_ids) > 1


def test_a_failing_step_ends_the_reply_with_an_error_event_and_still_raises() -> None:
    target = wide_target()

    class Breaking(Oracle):
        def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
            raise RuntimeError("broken on purpose")

    drafter = Breaking(target)
    sequence = make(target, drafter, [1, 2])
    loop = DecodeLoop(target, drafter, Letters())
    seen: list[Event] = []

    def run() -> Iterator[Event]:
        yield from loop.run(sequence, parse_schedule("fixed:2"), start_event(sequence), lambda: False)

    with pytest.raises(RuntimeError, match="on purpose"):
        seen.extend(event for event in run() if seen.append(event) is None)  # type: ignore[func-returns-value]
    assert isinstance(seen[-1], End)
    assert (seen[-1].reason, len(seen[-1].output_ids)) == ("error", 1)


def test_a_long_prompt_is_read_in_chunks_with_progress() -> None:
    target = TableTarget(vocab_size=4, seed=1, order=1, context_length=3000)
    drafter = Oracle(target)
    prompt = torch.randint(4, (1100,), generator=torch.Generator().manual_seed(1)).tolist()
    events, _ = play(target, drafter, make(target, drafter, prompt, max_new_tokens=3))
    progress = [(event.done, event.total) for event in events if isinstance(event, Prefill)]
    assert progress == [(512, 1100), (1024, 1100), (1100, 1100)]
