"""The only door to the engine: open a pair of target and drafter, make replies, cancel, close."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count

from dspark_cli.conversation import Conversation
from dspark_cli.engine.contracts import Cache, Request, Sampling
from dspark_cli.engine.decode_loop import DecodeLoop
from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.loading import EngineOptions, LoadedPair, load_pair
from dspark_cli.engine.sampling import ReplyLaw, SeededStream, TokenLaw
from dspark_cli.engine.scheduler.fixed import Off
from dspark_cli.engine.scheduler.policy import parse_schedule
from dspark_cli.engine.sequence import Sequence
from dspark_cli.engine.text.context_fit import fit_conversation
from dspark_cli.engine.text.detokenizer import Detokenizer
from dspark_cli.errors import ContextError, UsageError
from dspark_cli.events import End, Event, Start

__all__ = ["Engine", "EngineOptions", "Prompt"]


@dataclass(frozen=True)
class Prompt:
    """Token ids to answer; ``left_out`` messages of the conversation did not fit the context.

    ``starts_in_reasoning``: the template opened a reasoning part that the reply continues. ``raw``: the reply
    continues the prompt's own text.
    """

    ids: tuple[int, ...]
    left_out: int = 0
    starts_in_reasoning: bool = False
    raw: bool = False


@dataclass
class _Kept:
    """The caches of the last reply, for a next prompt that begins alike."""

    ids: list[int]
    cache: Cache
    context: Cache | None

    def rows(self) -> int:
        held = min(self.cache.length, len(self.ids))
        return held if self.context is None else min(held, self.context.length)


class Engine:
    """A loaded pair that makes one reply at a time."""

    def __init__(self, pair: LoadedPair) -> None:
        self._pair = pair
        self._loop = DecodeLoop(pair.target, pair.drafter, pair.tokenizer)
        self._kept: _Kept | None = None
        self._cancel = threading.Event()
        self._numbers = count(1)

    @classmethod
    def open(cls, options: EngineOptions, tell: Callable[[str], None] = lambda _: None) -> Engine:
        """Load the target and the drafter that ``options`` name.

        Args:
            options: what to load and where to run it.
            tell: gets what the user should know while it loads, in words.

        Raises:
            DsparkError: a file is missing or damaged, or the two do not fit.
        """
        return cls(load_pair(options, tell))

    @property
    def model_name(self) -> str:
        return self._pair.options.model_name

    @property
    def drafter_name(self) -> str | None:
        return self._pair.options.drafter_name if self._pair.drafter is not None else None

    @property
    def drafter_kind(self) -> str:
        return self._pair.drafter.kind if self._pair.drafter is not None else "none"

    @property
    def block_size(self) -> int:
        return self._pair.drafter.block_size if self._pair.drafter is not None else 0

    @property
    def has_confidence(self) -> bool:
        return self._pair.drafter is not None and self._pair.drafter.has_confidence

    @property
    def context_length(self) -> int:
        return self._pair.context_length

    @property
    def supports_thinking(self) -> bool:
        return self._pair.template.supports_thinking

    @property
    def default_sampling(self) -> Sampling:
        return self._pair.default_sampling

    @property
    def default_schedule(self) -> str:
        """Whole blocks where there is a drafter, else plain decoding."""
        return f"fixed:{self.block_size}" if self._pair.drafter is not None else "off"

    @property
    def pair(self) -> LoadedPair:
        """The parts, for benchmarks and training."""
        return self._pair

    def prompt(self, conversation: Conversation, *, think: bool | None = None, reserve: int = 1) -> Prompt:
        """The conversation as the target's chat template writes it, oldest turns left out until it fits.

        Args:
            conversation: system prompt and messages, the newest of them the user's.
            think: ask a thinking model to reason or not to; None leaves it to the template.
            reserve: tokens to keep free for the reply.

        Raises:
            ContextError: the newest message alone does not fit.
            DsparkError: the model has no chat template, or it fails.
        """
        fitted = fit_conversation(
            self._pair.tokenizer,
            self._pair.template,
            conversation,
            limit=self.context_length,
            reserve=reserve,
            think=think,
        )
        return Prompt(tuple(fitted.ids), fitted.left_out, fitted.opens_reasoning)

    def raw_prompt(self, text: str) -> Prompt:
        """``text`` as it stands, with a BOS only where the tokenizer adds one."""
        return Prompt(tuple(self._pair.tokenizer.raw_prompt_ids(text)), raw=True)

    def request(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_strings: tuple[str, ...] = (),
        schedule: str | None = None,
        detail: int = 0,
    ) -> Request:
        """A checked request.

        Raises:
            ContextError: the prompt leaves no room for a token, or is empty.
            UsageError: the schedule or the limit cannot be meant.
        """
        if not prompt.ids:
            raise ContextError("the prompt is empty", "give at least one character")
        if len(prompt.ids) >= self.context_length:
            raise ContextError(
                f"the prompt has {len(prompt.ids)} tokens and the context holds {self.context_length}",
                "shorten the prompt or raise --context-length, as far as the model allows",
            )
        if max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {max_new_tokens} leaves nothing to say", "give 1 or more")
        chosen = schedule or self.default_schedule
        # Without any drafter there is nothing a schedule could ask for: its rounds say «no-drafter».
        parse_schedule(chosen, has_confidence=self.has_confidence if self._pair.drafter is not None else None)
        return Request(
            id=f"r{next(self._numbers)}",
            prompt_ids=prompt.ids,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            stop_ids=self._pair.stop_ids,
            stop_strings=stop_strings,
            schedule=chosen,
            detail=detail,
            continues=prompt.raw,
        )

    def generate(self, request: Request) -> Iterator[Event]:
        """The events of one reply, made as they are asked for.

        The caches of the last reply are used again as far as the prompts agree. Closing the iterator early is safe.
        """
        self._cancel.clear()
        scheduler = parse_schedule(request.schedule)
        sequence, cached = self._sequence(request, drafting=not isinstance(scheduler, Off))
        self._kept = None
        try:
            yield from self._loop.run(sequence, scheduler, self._start(request, cached), self._cancel.is_set)
        finally:
            self._keep(sequence)

    def cancel(self) -> None:
        """End the running reply after its present step; callable from a signal handler or another thread."""
        self._cancel.set()

    def forget(self) -> None:
        """Drop the caches of the last reply, so that the next one reads its whole prompt."""
        self._kept = None

    def close(self) -> None:
        """Give the caches back; the engine must not be used afterwards."""
        self.cancel()
        self._kept = None

    def reply(self, request: Request) -> End:
        """Make the reply without looking at its events; returns the last one."""
        for event in self.generate(request):
            if isinstance(event, End):
                return event
        raise AssertionError("a reply without an end event")

    def _sequence(self, request: Request, *, drafting: bool) -> tuple[Sequence, int]:
        """A sequence that starts from the common prefix with the last reply, and that prefix's length."""
        drafter = self._pair.drafter if drafting else None
        cache, context, cached = None, None, 0
        kept = self._kept
        if kept is not None and (drafter is None or kept.context is not None):
            context = kept.context if drafter is not None else None
            rows = kept.rows() if drafter is not None else min(kept.cache.length, len(kept.ids))
            # The last prompt token is always read: its logits give the first token.
            cached = _common_prefix(kept.ids[:rows], request.prompt_ids[:-1])
            cache = kept.cache
            cache.truncate(cached)
            if context is not None:
                context.truncate(cached)
        law = ReplyLaw(
            TokenLaw(request.sampling, request.prompt_ids, self._pair.target.vocab_size),
            SeededStream(request.sampling.seed),
            detail=request.detail > 0,
        )
        sequence = Sequence(
            request=request,
            ids=list(request.prompt_ids),
            cache=cache if cache is not None else self._pair.target.new_cache(),
            context=context if context is not None or drafter is None else drafter.new_context(),
            law=law,
            sink=Detokenizer(
                self._pair.tokenizer, request.stop_strings, stop_ids=request.stop_ids, continues=request.continues
            ),
            context_length=self.context_length,
        )
        return sequence, cached

    def _keep(self, sequence: Sequence) -> None:
        """Remember the caches; a step that broke off in the middle leaves the shorter of the two to go by."""
        held = sequence.cache.length
        if sequence.context is not None:
            held = min(held, sequence.context.length)
            sequence.context.truncate(held)
        sequence.cache.truncate(held)
        self._kept = _Kept(sequence.ids, sequence.cache, sequence.context)

    def _start(self, request: Request, cached: int) -> Start:
        pair = self._pair
        return Start(
            request=request.id,
            model=self.model_name,
            drafter=self.drafter_name,
            drafter_kind=self.drafter_kind,
            engine="torch",
            device=pair.device,
            dtype=pair.dtype,
            block_size=self.block_size,
            schedule=request.schedule,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=cached,
            context_length=self.context_length,
            sampling={name: value for name, value in asdict(request.sampling).items() if name != "seed"},
            seed=request.sampling.seed,
            threads=pair.threads,
            weights=pair.weights_format,
            calibration=_calibration_name(pair, request.sampling),
        )


def _calibration_name(pair: LoadedPair, sampling: Sampling) -> str | None:
    """Which temperatures the confidences of a reply go through; None where they are taken as they are."""
    if not isinstance(pair.drafter, DSparkDrafter):
        return None
    law = "greedy" if sampling.greedy else "sampling"
    calibration = pair.drafter.calibration
    return None if getattr(calibration, law) is None else f"{calibration.name}, {law}"


def _common_prefix(held: list[int], wanted: tuple[int, ...]) -> int:
    length = 0
    for ours, theirs in zip(held, wanted, strict=False):
        if ours != theirs:
            break
        length += 1
    return length
