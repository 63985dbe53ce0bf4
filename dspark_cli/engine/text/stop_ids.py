"""Which tokens end a reply."""

from __future__ import annotations

from dspark_cli.engine.text.chat_template import ChatTemplate
from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import DsparkError

_QUESTION, _REPLY = "dsparkquestion", "dsparkreply"


def find(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    generation_eos: tuple[int, ...] = (),
    config_eos: tuple[int, ...] = (),
) -> frozenset[int]:
    """The ids that end a reply: those that the checkpoint names, and what its template writes after an assistant.

    ``generation_eos`` and ``config_eos`` are ``eos_token_id`` of generation_config.json and of config.json.
    """
    ids = {*generation_eos, *config_eos, *tokenizer.end_ids}
    if tokenizer.eos_id is not None:
        ids.add(tokenizer.eos_id)
    if template is not None and (marker := _end_marker(tokenizer, template)) is not None:
        ids.add(marker)
    return frozenset(ids)


def _end_marker(tokenizer: Tokenizer, template: ChatTemplate) -> int | None:
    """The special token that follows an assistant's words, None where the template writes none."""
    messages = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _REPLY}]
    try:
        rendered = template.render(messages, add_generation_prompt=False)
    except DsparkError:
        return None  # the named ids remain; a real conversation will tell the template's complaint
    _, found, after = rendered.rpartition(_REPLY)
    first = tokenizer.encode(after.lstrip(), special=True)[:1] if found else []
    return first[0] if first and first[0] in tokenizer.added_ids and tokenizer.piece(first[0]).strip() else None
