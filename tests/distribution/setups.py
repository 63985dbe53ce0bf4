"""Names for the pairs, schedules and samplings whose law is checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dspark_cli.engine.contracts import Drafter, Request, Sampling
from dspark_cli.engine.drafters.ngram import NgramDrafter
from dspark_cli.engine.scheduler.policy import parse_schedule
from tests.distribution.enumeration import Setup
from tests.fakes.scripted_drafter import TableDrafter
from tests.fakes.scripted_target import TableTarget
from tests.fakes.tiny_dspark import HEADS, tiny_dspark

PROMPT = (0, 2, 1, 0, 2)

SAMPLINGS = {
    "temperature-low": Sampling(temperature=0.6),
    "temperature-high": Sampling(temperature=1.7),
    "top-k": Sampling(temperature=0.9, top_k=2),
    "top-p": Sampling(temperature=1.2, top_p=0.75),
    "min-p": Sampling(temperature=1.2, min_p=0.25),
    "repetition": Sampling(temperature=0.8, repetition_penalty=1.7),
    "presence": Sampling(temperature=0.8, presence_penalty=0.9),
    "frequency": Sampling(temperature=0.8, frequency_penalty=0.6),
    "all": Sampling(
        temperature=0.9, top_k=3, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.2,
    ),
}  # fmt: skip

SCHEDULES = ("off", "fixed:1", "fixed:2", "threshold:0.45")
EDGES = ("fixed:0", "fixed:9", "threshold:0", "threshold:0.6", "threshold:1")

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "table": TableDrafter,
    "table-parallel": lambda: TableDrafter(sequential=False),
    "table-no-confidence": lambda: TableDrafter(confident=False),
    **{head: partial(tiny_dspark, head) for head in HEADS},
    **{f"{head}-reduced": partial(tiny_dspark, head, draft_ids=(0, 2, 3)) for head in HEADS},
    "one-token": partial(tiny_dspark, "vanilla", draft_ids=(2,)),
    "vanilla-no-confidence": partial(tiny_dspark, "vanilla", confidence=False),
    "ngram": lambda: NgramDrafter(block_size=2, max_ngram=2, min_ngram=1),
}


def setup(
    drafter: str | Drafter = "table",
    schedule: str = "fixed:2",
    sampling: str | Sampling = "temperature-low",
    *,
    max_new_tokens: int = 4,
    stop_ids: frozenset[int] = frozenset(),
    context_length: int = 64,
    target_seed: int = 1,
    prompt: tuple[int, ...] = PROMPT,
) -> Setup:
    """A pair of tables under a schedule. With 4 new tokens the first block has room for 2 drafted ones."""
    drafts = DRAFTERS[drafter]() if isinstance(drafter, str) else drafter
    law = SAMPLINGS[sampling] if isinstance(sampling, str) else sampling
    request = Request("r", prompt, law, max_new_tokens=max_new_tokens, stop_ids=stop_ids, schedule=schedule)
    target = TableTarget(4, target_seed, context_length=context_length)
    return Setup(target, drafts, parse_schedule(schedule, has_confidence=drafts.has_confidence), request)
