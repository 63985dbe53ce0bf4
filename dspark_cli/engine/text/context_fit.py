"""Fits a conversation into the context by leaving its oldest turns out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from dspark_cli.conversation import Conversation
from dspark_cli.errors import ContextError

# How full the context is after turns were left out. The rest is room to grow, so that the turns that follow begin
# with the same tokens and need not be read anew each time.
_FULL_AFTERWARDS = 0.75

Encode = Callable[[list[dict[str, str]]], list[int]]


@dataclass(frozen=True)
class Fit:
    """``ids`` of the prompt; ``left_out`` messages in all are not in it, ``newly_left_out`` of them since the last fit.

    The second number is what a note should be about.
    """

    ids: list[int]
    left_out: int
    newly_left_out: int


def fit_conversation(conversation: Conversation, encode: Encode, *, limit: int, reserve: int) -> Fit:
    """Prompt ids of ``conversation``, at most ``limit − reserve`` of them.

    ``encode`` renders and tokenizes template messages; ``limit`` is the context in tokens and ``reserve`` the room
    that the reply needs. The oldest turns (a user's message and what answers it) go first; the system prompt and the
    newest user message always stay. ``conversation.left_out`` remembers what is gone, so that it stays gone.

    Raises:
        ContextError: not even the newest message fits.
    """
    room = limit - reserve
    before = conversation.left_out
    ids = encode(conversation.template_messages())
    if len(ids) > room:
        first, ids = _shorten(conversation, encode, room, ids)
        if len(ids) > room:
            raise _too_long(len(ids), limit, reserve)
        conversation.left_out = first
    return Fit(ids, conversation.left_out, conversation.left_out - before)


def _shorten(conversation: Conversation, encode: Encode, room: int, ids: list[int]) -> tuple[int, list[int]]:
    """The first message to keep and the ids then: the earliest turn that leaves room to grow, or else just fits.

    Where no turn fits, the last one.
    """
    now = conversation.left_out
    turns = [now, *(i for i, message in enumerate(conversation.messages) if i > now and message.role == "user")]
    made = {now: ids}

    def fits(turn: int, goal: float) -> bool:
        if turn not in made:
            made[turn] = encode(conversation.template_messages(turn))
        return len(made[turn]) <= goal

    for goal in (room * _FULL_AFTERWARDS, room):
        # Prompts get shorter from turn to turn, so the first that fits is found by halving.
        index = bisect_left(turns, True, key=lambda turn: fits(turn, goal))  # noqa: B023 - called before goal changes
        if index < len(turns):
            return turns[index], made[turns[index]]
    return turns[-1], made[turns[-1]]


def _too_long(length: int, limit: int, reserve: int) -> ContextError:
    return ContextError(
        f"the newest message makes a prompt of {length} tokens, but the context of {limit} leaves room for "
        f"{max(limit - reserve, 0)} beside the reply",
        "shorten it, raise --context-length or lower --max-new-tokens",
    )
