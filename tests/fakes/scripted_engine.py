"""An engine with the surface of the real one, whose replies follow from the newest message; needs no torch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dspark_cli.conversation import Conversation
from dspark_cli.errors import ContextError, DsparkError
from dspark_cli.events import End, Event, Note, Prefill, Round, Start, Text
from dspark_cli.trace import RunSummary


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class Prompt:
    ids: tuple[int, ...]
    left_out: int = 0
    starts_in_reasoning: bool = False
    text: str = ""


@dataclass(frozen=True)
class Request:
    prompt: Prompt
    sampling: Sampling
    max_new_tokens: int
    stop_strings: tuple[str, ...]
    schedule: str


@dataclass
class ScriptedEngine:
    """What the newest message says is what happens.

    ``slow`` never ends by itself, ``fail`` raises after a few words and ``crash`` at once, ``long`` does not fit,
    ``think`` reasons first, ``note`` brings a warning, ``escape`` holds control characters, ``empty`` is no text;
    any other message is answered with the conversation as JSON. Each word is a token and a round.
    """

    default_sampling: Sampling = Sampling()
    context_length: int = 1000
    model_name: str = "scripted"
    drafter_name: str | None = None
    drafter_kind: str = "none"
    block_size: int = 0
    has_confidence: bool = False
    supports_thinking: bool = True
    default_schedule: str = "off"
    requests: list[Request] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._cancelled = threading.Event()

    def prompt(self, conversation: Conversation, *, think: bool | None = None, reserve: int = 1) -> Prompt:
        text = conversation.messages[-1].content
        if text == "long":
            raise ContextError("the newest message makes a prompt of 2000 tokens", "shorten it")
        shown = json.dumps(conversation.template_messages(), ensure_ascii=False)
        return Prompt(tuple(range(len(text))), text=text if text in _SCRIPTS else shown)

    def raw_prompt(self, text: str) -> Prompt:
        return Prompt(tuple(range(len(text))), text=f"raw {text!r}")

    def request(self, prompt: Prompt, **settings: Any) -> Request:
        chosen = settings.pop("schedule") or self.default_schedule
        self.requests.append(Request(prompt, schedule=chosen, **settings))
        return self.requests[-1]

    def generate(self, request: Request) -> Iterator[Event]:
        self._cancelled.clear()
        summary = RunSummary()
        text, reason = "", "stop"
        try:
            for event in self._events(request):
                summary.fold(event)
                yield event
                if isinstance(event, Text):
                    text += event.delta
                elif isinstance(event, Round):
                    continue  # its text comes before the reply may end
                if self._cancelled.is_set():
                    reason = "cancelled"
                    break
                if summary.tokens >= request.max_new_tokens:
                    reason = "length"
                    break
        except Exception:
            reason = "error"
            raise
        finally:
            if reason == "error":
                yield _end(request, reason, text, summary)
        yield _end(request, reason, text, summary)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.closed = True

    def _events(self, request: Request) -> Iterator[Event]:
        size = len(request.prompt.ids)
        yield Start(
            request="r1", model=self.model_name, drafter=None, drafter_kind="none", engine="scripted", device="cpu",
            dtype="f32", block_size=0, schedule=request.schedule, prompt_tokens=size, cached_tokens=0,
            context_length=self.context_length, sampling={}, seed=request.sampling.seed, threads=1, weights="none",
        )  # fmt: skip
        yield Prefill(request="r1", done=size, total=size, ms=1.0)
        script = request.prompt.text
        if script == "crash":
            raise RuntimeError("a bug")
        if script == "note":
            yield Note(request="r1", level="warning", code="fallback", message="something was replaced")
        if script == "silent":
            time.sleep(600)
        for index, piece in enumerate(_pieces(script)):
            yield Round(
                request="r1", index=index, position=size + index, anchor=index or None, draft=(), confidence=None,
                survival=None, planned=0, verified=0, accepted=0, next_token=index, outcome="bonus", tokens=(index,),
                text=piece, reason="off", at=float(index),
            )  # fmt: skip
            yield Text(request="r1", delta=piece)
            if script == "slow":
                time.sleep(0.02)
            if script == "fail" and index == 2:
                raise DsparkError("the device was unplugged", "plug it in again")


_SCRIPTS = ("slow", "silent", "fail", "crash", "think", "note", "escape", "empty")


def _pieces(script: str) -> Iterator[str]:
    if script == "slow":
        yield from (f"word{n} " for n in range(100_000))
    elif script == "think":
        yield from ("<think>", "\nhm ", "hm", "\n</think>", "\n\nForty", "-two.")
    elif script == "escape":
        yield "a\x1b[31mb\x07c\n\td"
    elif script != "empty":
        yield from (
            ("I ", "begin ", "well ") if script == "fail" else (script[i : i + 7] for i in range(0, len(script), 7))
        )


def _end(request: Request, reason: str, text: str, summary: RunSummary) -> End:
    ids = tuple(range(summary.tokens))
    return End(request="r1", reason=reason, output_ids=ids, text=text, stats=summary.stats())
