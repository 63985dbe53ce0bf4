"""READ FIRST: the values that travel through the engine and the protocols of its parts.

Notation: V vocabulary size, H hidden size, T number of tapped layers, γ block size.
One round drafts x_1 … x_γ after the *anchor* (the newest token, not yet read by the target), chooses how many
of them the target verifies, and commits the accepted ones and one token more.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # schedulers and settings read these values without paying for torch
    from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The defaults are greedy, unfiltered and unpenalised.

    ``temperature`` 0 means greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean no filter;
    ``repetition_penalty`` 1, ``presence_penalty`` 0 and ``frequency_penalty`` 0 mean no penalty.
    """

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
class Request:
    """One reply to be made.

    ``detail`` 0 leaves the probabilities out of the round events, 1 gives ``p`` and ``q``, 2 also the top
    alternatives of each verified row. ``schedule`` is a policy's text, such as ``fixed:7``. ``continues``: the reply
    goes on in the middle of the prompt's text (raw prompts), so that its leading space belongs to it.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling = Sampling()
    max_new_tokens: int = 512
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    schedule: str = "off"
    detail: int = 1
    continues: bool = False


@dataclass(frozen=True)
class Draft:
    """At most γ drafted tokens, in target ids.

    ``q[k]`` is the very distribution [V] that token k was drawn from, in target ids; ``q`` is None where the
    draft is certain given the past (greedy drafting, n-gram lookup). ``confidence[k]`` is the calibrated
    probability that token k is accepted given that all earlier ones were; None without a confidence head.
    ``confidence_logits`` are its raw logits. ``q_drafted[k]`` is what the drafter gave token k, for display.
    """

    tokens: tuple[int, ...] = ()
    q: tuple[Tensor, ...] | None = None
    confidence: tuple[float, ...] | None = None
    confidence_logits: tuple[float, ...] | None = None
    q_drafted: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Intent:
    """The decision before drafting: how many slots to draft (0: none), and the reason where it is none."""

    slots: int
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """The decision after drafting: how many drafted tokens to verify."""

    planned: int
    reason: str
    expected_tokens: float | None = None
    predicted_ms: float | None = None
    theta: tuple[float, ...] | None = None


@dataclass(frozen=True)
class RoundState:
    """What a scheduler may know before a round: nothing of this round's draft.

    ``room`` is how many drafted tokens could at most be verified before the token limit or the context ends;
    ``limit`` names which of the two would cut (``token-limit`` or ``context-limit``).
    """

    block_size: int
    position: int
    room: int
    limit: str


@dataclass(frozen=True)
class Rows:
    """Token ids that one sequence appends to its cache in a forward pass.

    ``logits_from`` is the first of these rows whose logits are wanted (prefill wants only the last).
    """

    cache: Cache
    ids: tuple[int, ...]
    logits_from: int = 0


@dataclass(frozen=True)
class Verification:
    """What the target returned for the rows of one sequence.

    ``logits`` [n − logits_from, V]: row i is the target's opinion on the token after row i.
    ``taps`` [n, T·H]: outputs of the tapped layers, concatenated in the order asked for; None if none were.
    """

    logits: Tensor
    taps: Tensor | None


@dataclass(frozen=True)
class Verdict:
    """``accepted`` drafted tokens stand; then ``next_token`` follows (None where a stop id ended the block).

    ``outcome`` is ``bonus`` if all verified were accepted, ``corrected`` if one was rejected, ``stop`` if a stop
    id among the accepted ended the block (it counts as accepted).
    """

    accepted: int
    next_token: int | None
    outcome: str


class Cache(Protocol):
    """Per-sequence state that grows by rows and is cut back by length."""

    @property
    def length(self) -> int:
        """Number of rows held."""

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` rows (0 ≤ length ≤ self.length)."""


class RandomStream(Protocol):
    """All chance in the loop comes through these two draws, one stream a sequence."""

    def categorical(self, probabilities: Tensor) -> int:
        """An index drawn with ``probabilities`` [V], which need not sum to exactly 1."""

    def bernoulli(self, probability: float) -> bool:
        """True with the given probability (values above 1 mean certainty)."""


class DraftLaw(Protocol):
    """How one reply draws its drafted tokens: the request's own penalties, temperature and filters."""

    def choose(
        self, logits: Tensor, drafted: Seq[int], ids: Tensor | None = None
    ) -> tuple[int, Tensor | None, float | None]:
        """Draw slot ``len(drafted)`` from draft ``logits``.

        Args:
            logits: [V] in target ids, or [V_draft] of a reduced draft vocabulary.
            drafted: the tokens of the slots before, in target ids.
            ids: int64 [V_draft], the target id of each of ``logits``; None where they are in target ids already.

        Returns:
            The token in target ids, its distribution q [V] in target ids (None when greedy), and the drafter's own
            probability of it (None unless the request asks for detail).
        """


class Target(Protocol):
    """The model whose distribution is kept exactly."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def new_cache(self) -> Cache: ...

    def forward(self, blocks: Seq[Rows], taps: tuple[int, ...] = ()) -> list[Verification]:
        """Read the rows of one or more sequences in one pass, appending to their caches.

        ``taps`` are tap ids: L is the output of 0-based layer L, −1 the embedding output.
        """


class Drafter(Protocol):
    """Makes drafts from a context that holds one row for each token that the target has read."""

    @property
    def kind(self) -> str:
        """``dspark``, ``parallel``, ``sequential`` or ``ngram``."""

    @property
    def block_size(self) -> int: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Tap ids that :meth:`extend` needs; empty for drafters that read no features."""

    @property
    def has_confidence(self) -> bool: ...

    def new_context(self) -> Cache: ...

    def extend(self, context: Cache, ids: Seq[int], taps: Tensor | None) -> None:
        """Append one context row for each of ``ids``, which the target has just read (``taps`` [n, T·H])."""

    def draft(self, context: Cache, anchor: int, law: DraftLaw, slots: int) -> Draft:
        """Draft at most ``slots`` tokens after ``anchor``, which stands at position ``context.length``.

        Leaves ``context`` as it was.
        """


class Scheduler(Protocol):
    """Chooses how much to verify. Whether slot k is admitted may depend only on what is known before x_k."""

    @property
    def name(self) -> str: ...

    def begin(self, state: RoundState) -> Intent: ...

    def plan(self, state: RoundState, draft: Draft) -> Plan: ...


@runtime_checkable
class TextSink(Protocol):
    """Text behind the loop: takes committed ids, knows when a stop string is complete."""

    def push(self, token: int) -> bool:
        """Take one token; True if it completed a stop string (later tokens must not be pushed)."""

    def take(self) -> str:
        """Text that has become safe to show since the last call."""

    def finish(self) -> str:
        """The rest, once the reply is over."""
