"""Fits a conversation into the context by leaving its oldest turns out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from dspark_cli.conversation import Conversation
from dspark_cli.engine.text.chat_template import ChatTemplate, opens_reasoning
from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import ContextError

# How full the context is after turns were left out. The rest is room to grow, so that the turns that follow begin
# with the same tokens and need not be read anew each time.
_FULL_AFTERWARDS = 0.75


@dataclass(frozen=True)
class Fit:
    """``ids`` of the prompt; the ``left_out`` oldest messages are not in it.

    ``opens_reasoning``: the prompt ends inside the reasoning, so that the reply begins there.
    """

    ids: list[int]
    left_out: int
    opens_reasoning: bool


def fit_conversation(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    conversation: Conversation,
    *,
    limit: int,
    reserve: int,
    think: bool | None = None,
) -> Fit:
    """Render and encode ``conversation`` into at most ``limit − reserve`` ids.

    ``limit`` is the context in tokens and ``reserve`` the room that the reply needs. The oldest turns (a user's
    message and what answers it) go first; the system prompt and the newest user message always stay.
    ``conversation.left_out`` remembers what is gone, so that it stays gone.

    Raises:
        ContextError: not even the newest message fits.
        DsparkError: there is no template, or it refuses the messages.
    """

    def encode(first: int) -> tuple[list[int], bool]:
        rendered = template.render(conversation.template_messages(first), think=think)
        return tokenizer.encode(rendered, special=True), opens_reasoning(rendered)

    room = limit - reserve
    first = conversation.left_out
    ids, opens = encode(first)
    if len(ids) > room:
        first, (ids, opens) = _shorten(conversation, encode, room, (ids, opens))
        if len(ids) > room:
            raise _too_long(len(ids), limit, reserve)
        conversation.left_out = first
    return Fit(ids, first, opens)


_Encoded = tuple[list[int], bool]


def _shorten(
    conversation: Conversation, encode: Callable[[int], _Encoded], room: int, whole: _Encoded
) -> tuple[int, _Encoded]:
    """The first message to keep and the ids then: the earliest turn that leaves room to grow, or else just fits.

    Where no turn fits, the last one.
    """
    now = conversation.left_out
    turns = [now, *(i for i, message in enumerate(conversation.messages) if i > now and message.role == "user")]
    made = {now: whole}

    def fits(turn: int, goal: float) -> bool:
        if turn not in made:
            made[turn] = encode(turn)
        return len(made[turn][0]) <= goal

    for goal in (room * _FULL_AFTERWARDS, room):
        # Prompts get shorter from turn to turn, so the first that fits is found by halving.
        index = bisect_left(turns, True, key=lambda turn: fits(turn, goal))
        if index < len(turns):
            return turns[index], made[turns[index]]
    return turns[-1], made[turns[-1]]


def _too_long(length: int, limit: int, reserve: int) -> ContextError:
    return ContextError(
        f"the newest message makes a prompt of {length} tokens, but the context of {limit} leaves room for "
        f"{max(limit - reserve, 0)} beside the reply",
        "shorten it, raise --context-length or lower --max-new-tokens"
        if length < limit
        else "shorten it or raise --context-length",
    )
