"""Text for training from the target alone: it writes the user's turns, then it answers them.

A chat model has seen many user turns between its template's markers. Given the opening of one, it writes a plausible
question of its own; cut at its end marker and put through the template, the question is then answered as in use, by
the greedy or the sampled law. Replies are made many at a time, a new one entering where one ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from dspark_cli.conversation import Conversation
from dspark_cli.engine.contracts import Cache, Draft, Drafter, DraftLaw, Request, Rows, Sampling, Scheduler
from dspark_cli.engine.loading import LoadedPair
from dspark_cli.engine.round import RoundResult, run_round
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from dspark_cli.engine.scheduler.fixed import Off
from dspark_cli.engine.sequence import Sequence
from dspark_cli.engine.stopping import keep_until_stop
from dspark_cli.errors import DsparkError

_MARK = "dsparkusersturn"
_MOST_IN_VAIN = 256


@dataclass(frozen=True)
class SynthesisRecipe:
    """How much text and of which kind.

    ``greedy_share`` of the replies is greedy, the rest is drawn at ``temperature``. User turns are always drawn, from
    the ``user_top_p`` nucleus, so that they differ. ``parallel`` replies are in the making at a time.
    """

    seed: int = 0
    greedy_share: float = 0.5
    temperature: float = 1.0
    user_top_p: float = 0.95
    most_user_tokens: int = 96
    most_reply_tokens: int = 256
    parallel: int = 32


@dataclass(frozen=True)
class Dialogue:
    """One prompt and its reply: ``ids`` of both, the reply beginning at ``reply_start``.

    ``features`` [n, T·H] float16 are the tapped outputs of the first n ids, those that the target has read.
    """

    number: int
    ids: tuple[int, ...]
    reply_start: int
    greedy: bool
    features: Tensor


class FeatureContext:
    """The tapped rows of one sequence, kept as they come."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def append(self, rows: Tensor) -> None:
        self.rows.append(rows.half())
        self._length += rows.shape[0]

    def truncate(self, length: int) -> None:
        if length != self._length:
            raise ValueError("plain decoding never cuts back")

    def features(self) -> Tensor:
        return torch.cat(self.rows)


@dataclass(frozen=True)
class FeatureRecorder:
    """Stands where a drafter would, never drafts, and keeps what it is shown (``contracts.Drafter``)."""

    taps: tuple[int, ...]
    kind: str = "none"
    block_size: int = 1
    has_confidence: bool = False

    def new_context(self) -> FeatureContext:
        return FeatureContext()

    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        assert isinstance(context, FeatureContext)
        if taps is not None:
            context.append(taps)

    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        raise AssertionError("a recorder never drafts")


def user_turn_opening(pair: LoadedPair) -> tuple[int, ...]:
    """The template up to where the user's words begin.

    Raises:
        DsparkError: there is nothing before them, or the template does not show them.
    """
    rendered = pair.template.render([{"role": "user", "content": _MARK}])
    opening, found, _ = rendered.partition(_MARK)
    ids = tuple(pair.tokenizer.encode(opening, special=True)) if found else ()
    if not ids:
        raise DsparkError(
            f"the chat template of {pair.options.model_name} does not open the user's turn, so that the model cannot "
            "write one",
            "give prompts with --prompts",
        )
    return ids


def prompt_ids(pair: LoadedPair, text: str) -> tuple[int, ...]:
    """``text`` as the user's only message."""
    conversation = Conversation()
    conversation.add_user(text)
    rendered = pair.template.render(conversation.template_messages())
    return tuple(pair.tokenizer.encode(rendered, special=True))


class ReplyPool:
    """Makes many replies side by side.

    Args:
        pair: whose target replies.
        drafter: what drafts, or a :class:`FeatureRecorder`.
        scheduler: how much is drafted and verified.
        detail: of the requests; 1 keeps the laws that drafts were judged by among the results.
    """

    def __init__(
        self, pair: LoadedPair, drafter: Drafter | None = None, scheduler: Scheduler | None = None, detail: int = 0
    ) -> None:
        self._pair = pair
        self._drafter = drafter
        self._scheduler = scheduler or Off()
        self._detail = detail
        self._running: list[tuple[int, Sequence]] = []
        self.results: list[tuple[Sequence, RoundResult]] = []  # of the last step

    def __len__(self) -> int:
        return len(self._running)

    def add(self, jobs: Seq[tuple[int, tuple[int, ...], Sampling, int]]) -> None:
        """Begin replies: (number, prompt ids, sampling, most tokens) each; all prompts are read in one pass."""
        if not jobs:
            return
        new = [(number, self._sequence(number, *job)) for number, *job in jobs]  # type: ignore[arg-type]
        rows = [Rows(s.cache, s.request.prompt_ids, len(s.request.prompt_ids) - 1) for _, s in new]
        taps = self._drafter.taps if self._drafter is not None else ()
        for (_, sequence), read in zip(new, self._pair.target.forward(rows, taps), strict=True):
            if sequence.context is not None and self._drafter is not None:
                self._drafter.extend(sequence.context, sequence.request.prompt_ids, read.taps)
            law = sequence.law
            if law.greedy:
                token = law.greedy_tokens(read.logits, ())[0]
            else:
                token = law.stream.categorical(law.probabilities(read.logits, ())[0])
            kept = keep_until_stop(sequence, (token,))
            sequence.ids.extend(kept)
            law.commit(kept)
        self._running += new

    def _sequence(self, number: int, ids: tuple[int, ...], sampling: Sampling, limit: int) -> Sequence:
        pair = self._pair
        request = Request(f"s{number}", ids, sampling, limit, pair.stop_ids, detail=self._detail)
        law = ReplyLaw(TokenLaw(sampling, ids, pair.target.vocab_size), SeededStream(sampling.seed), detail=0)
        context = self._drafter.new_context() if self._drafter is not None else None
        cache = pair.target.new_cache()
        return Sequence(request, list(ids), cache, context, law, context_length=pair.context_length)

    def step(self) -> list[tuple[int, Sequence]]:
        """One round for every running reply; returns those that ended. ``results`` has the rounds."""
        going = [sequence for _, sequence in self._running if not sequence.finished]
        self.results = []
        if going:
            rounds = run_round(self._pair.target, self._drafter, self._scheduler, going)
            self.results = list(zip(going, rounds, strict=True))
        ended = [(number, sequence) for number, sequence in self._running if sequence.finished]
        self._running = [(number, sequence) for number, sequence in self._running if not sequence.finished]
        return ended


@dataclass
class Synthesiser:
    """Writes dialogues without end; number n is the same for the same recipe, whatever was made before it."""

    pair: LoadedPair
    recipe: SynthesisRecipe
    taps: tuple[int, ...]
    first: int = 0
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def dialogues(self, prompts: Iterator[str] | None = None) -> Iterator[Dialogue]:
        """Dialogues as they end. ``prompts`` replaces the target's own user turns; it may run dry."""
        asking, answering = ReplyPool(self.pair), ReplyPool(self.pair, FeatureRecorder(self.taps))
        waiting: list[tuple[int, tuple[int, ...]]] = []
        opening = user_turn_opening(self.pair) if prompts is None else ()
        numbers = count(self.first)
        dry = False
        while not (dry and not waiting and not len(answering)):
            if prompts is None:
                for number, sequence in self._ask(asking, opening, numbers, len(waiting)):
                    words = self._words(sequence)
                    if words:
                        waiting.append((number, prompt_ids(self.pair, words)))
            while prompts is not None and not dry and len(waiting) < self.recipe.parallel:
                text = next(prompts, None)
                dry = text is None
                if text is not None:
                    waiting.append((next(numbers), prompt_ids(self.pair, text)))
            room = self.recipe.parallel - len(answering)
            answering.add([self._job(number, ids) for number, ids in waiting[:room]])
            del waiting[:room]
            for number, sequence in answering.step():
                assert isinstance(sequence.context, FeatureContext)
                yield Dialogue(
                    number,
                    tuple(sequence.ids),
                    sequence.prompt_tokens,
                    sequence.law.greedy,
                    sequence.context.features(),
                )

    def questions(self) -> Iterator[str]:
        """User turns alone, without end.

        Raises:
            DsparkError: the target writes none that can be used.
        """
        asking, opening, numbers = ReplyPool(self.pair), user_turn_opening(self.pair), count(self.first)
        in_vain = 0
        while True:
            for _, sequence in self._ask(asking, opening, numbers, 0):
                words = self._words(sequence)
                if words:
                    yield words
                in_vain = 0 if words else in_vain + 1
                if in_vain >= _MOST_IN_VAIN:
                    raise DsparkError(
                        f"{self.pair.options.model_name} writes no user turns of its own that could be used",
                        "give prompts with --prompts",
                    )

    def _ask(
        self, asking: ReplyPool, opening: tuple[int, ...], numbers: Iterator[int], waiting: int
    ) -> list[tuple[int, Sequence]]:
        """Keep half as many questions in the making as answers, unless enough of them wait."""
        wanted = self.recipe.parallel // 2 - len(asking)
        if waiting < self.recipe.parallel // 2 and wanted > 0:
            new = [next(numbers) for _ in range(wanted)]
            asking.add([(n, opening, self._user_sampling(n), self.recipe.most_user_tokens) for n in new])
        return asking.step() if waiting < self.recipe.parallel else []

    def _words(self, sequence: Sequence) -> str:
        """The user's words; empty where the turn did not end by itself, is blank or was written before."""
        ids = tuple(sequence.reply_ids[:-1])
        if sequence.finished != "stop" or ids in self._seen:
            return ""
        self._seen.add(ids)
        return self.pair.tokenizer.decode(ids).strip()

    def _user_sampling(self, number: int) -> Sampling:
        return Sampling(temperature=1.0, top_p=self.recipe.user_top_p, seed=self._seed(2 * number))

    def _job(self, number: int, ids: tuple[int, ...]) -> tuple[int, tuple[int, ...], Sampling, int]:
        seed = self._seed(2 * number + 1)
        greedy = SeededStream(seed).bernoulli(self.recipe.greedy_share)
        temperature = 0.0 if greedy else self.recipe.temperature
        return number, ids, Sampling(temperature=temperature, seed=seed), self.recipe.most_reply_tokens

    def _seed(self, index: int) -> int:
        return (self.recipe.seed << 64) + index
