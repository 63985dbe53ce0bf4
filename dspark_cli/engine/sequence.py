"""One reply in the making: its ids, its caches, its law and its chance."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark_cli.engine.contracts import Cache, Request, RoundState, TextSink
from dspark_cli.engine.sampling import ReplyLaw


@dataclass
class Sequence:
    """The state of one reply.

    ``ids`` are prompt and reply. The last of them is the *anchor*, which the target has not read yet once the
    prompt has been: between rounds ``cache`` (and ``context``, where there is a drafter) hold exactly
    ``position`` rows. ``finished`` names why the reply ended (see ``events.END_REASONS``), "" while it runs.
    """

    request: Request
    ids: list[int]
    cache: Cache
    context: Cache | None
    law: ReplyLaw
    sink: TextSink | None = None
    rounds: int = 0
    finished: str = ""
    context_length: int = 0
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.request.prompt_ids)

    @property
    def anchor(self) -> int:
        return self.ids[-1]

    @property
    def position(self) -> int:
        """Position of the anchor."""
        return len(self.ids) - 1

    @property
    def reply_ids(self) -> list[int]:
        return self.ids[self.prompt_tokens :]

    def state(self, block_size: int) -> RoundState:
        """What a scheduler may know now. A round commits at most one token more than it verifies."""
        tokens_left = self.request.max_new_tokens - len(self.reply_ids) - 1
        rows_left = self.context_length - self.position - 2
        limit = "token-limit" if tokens_left <= rows_left else "context-limit"
        return RoundState(block_size, self.position, max(0, min(tokens_left, rows_left)), limit)

    def check_caches(self) -> None:
        """Both caches hold exactly the rows before the anchor."""
        assert self.cache.length == self.position, (self.cache.length, self.position)
        assert self.context is None or self.context.length == self.position, (self.context.length, self.position)
