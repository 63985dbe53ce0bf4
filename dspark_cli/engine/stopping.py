"""Where a reply ends: at a stop id, a stop string, the token limit or the end of the context."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from dspark_cli.engine.sequence import Sequence


def keep_until_stop(sequence: Sequence, tokens: Seq[int]) -> tuple[int, ...]:
    """The part of ``tokens`` that the reply keeps; sets ``sequence.finished`` where it ends there.

    A stop id and the token that completes a stop string are kept, later ones are not. The token limit is exact;
    prompt and reply together never exceed the context.
    """
    request = sequence.request
    room = request.max_new_tokens - len(sequence.reply_ids)
    for count, token in enumerate(tokens, start=1):
        if token in request.stop_ids:
            sequence.finished = "stop"
        elif sequence.sink is not None and sequence.sink.push(token):
            sequence.finished = "stop_string"
        elif count == room:
            sequence.finished = "length"
        elif len(sequence.ids) + count >= sequence.context_length:
            sequence.finished = "context"
        if sequence.finished:
            return tuple(tokens[:count])
    return tuple(tokens)
