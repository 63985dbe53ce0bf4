"""From logits to the law of the next token, and the seeded draws from it.

One :class:`TokenLaw` a reply serves the target's rows and the draft alike, so that the draft distribution q passes
through the very penalties and filters that the target distribution p passes through.

The order is that of transformers' ``generate``: repetition penalty (prompt and reply), then presence and frequency
(reply only), temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from dspark_cli.engine.contracts import RandomStream, Sampling
from dspark_cli.engine.token_filters import filtered
from dspark_cli.errors import DsparkError, UsageError


def check_sampling(sampling: Sampling) -> None:
    """Refuse values that describe no distribution.

    Raises:
        UsageError: naming the setting, its value and what is allowed.
    """
    wants = {
        "temperature": (sampling.temperature == 0 or 1e-20 <= sampling.temperature < math.inf, "0 (greedy) or above"),
        "top-k": (sampling.top_k >= 0, "0 (off) or a number of tokens"),
        "top-p": (0 <= sampling.top_p <= 1, "between 0 and 1 (off)"),
        "min-p": (0 <= sampling.min_p <= 1, "between 0 (off) and 1"),
        "repetition-penalty": (0 < sampling.repetition_penalty < math.inf, "above 0 (1 is off)"),
        "presence-penalty": (math.isfinite(sampling.presence_penalty), "a finite number (0 is off)"),
        "frequency-penalty": (math.isfinite(sampling.frequency_penalty), "a finite number (0 is off)"),
    }
    for name, (fine, allowed) in wants.items():
        if not fine:
            value = getattr(sampling, name.replace("-", "_"))
            raise UsageError(f"{name} {value} is not possible", f"give {allowed}")


class TokenLaw:
    """The law of one reply's next token, given the prompt and what has been committed.

    Every method that takes ``rows`` [n, V] treats row i as what follows prompt, reply and ``drafted[: first + i]``.
    Rows of float64 stay float64, all others become float32; ``rows`` itself is never changed.
    """

    def __init__(self, sampling: Sampling, prompt_ids: Seq[int], vocab_size: int) -> None:
        check_sampling(sampling)
        self.sampling = sampling
        self._vocab_size = vocab_size
        self._counted = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._repetition = sampling.repetition_penalty != 1
        # The ids that a penalty touches, and how often each stands in the reply (0: in the prompt only).
        self._slots: dict[int, int] = {}
        self._ids = _as_ids([])
        self._counts = torch.empty(0, dtype=torch.float64)
        if self._repetition:
            self._touch(prompt_ids)

    @property
    def penalises(self) -> bool:
        """Whether some tokens' logits depend on what was said before."""
        return self._counted or self._repetition

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def commit(self, ids: Seq[int]) -> None:
        """Count ``ids`` as tokens of the reply from now on."""
        if not self.penalises:
            return
        self._touch(ids)
        slots = [self._slots[id_] for id_ in ids if id_ in self._slots]
        self._counts = self._counts.index_add(0, _as_ids(slots), torch.ones(len(slots), dtype=torch.float64))

    def _touch(self, ids: Seq[int]) -> None:
        """Give a slot to each id that has none; ids beyond the head's vocabulary can never be drawn."""
        new = [id_ for id_ in dict.fromkeys(ids) if 0 <= id_ < self._vocab_size and id_ not in self._slots]
        for id_ in new:
            self._slots[id_] = len(self._slots)
        self._ids = torch.cat([self._ids, _as_ids(new)])
        self._counts = torch.cat([self._counts, torch.zeros(len(new), dtype=torch.float64)])

    def _counts_of(self, ids: Tensor) -> Tensor:
        slots = [self._slots.get(id_, -1) for id_ in ids.tolist()]
        return torch.cat([self._counts, torch.zeros(1, dtype=torch.float64)])[_as_ids(slots)]

    def logits(self, rows: Tensor, drafted: Seq[int], first: int = 0) -> Tensor:
        """``rows`` [n, V] after the penalties (the same tensor where there are none)."""
        rows = rows if rows.dtype == torch.float64 else rows.float()
        last = first + rows.shape[0] - 1
        if last > len(drafted):
            raise ValueError(f"{rows.shape[0]} rows from {first} need {last} drafted tokens, not {len(drafted)}")
        if not self.penalises:
            return rows
        ids = self._ids.to(rows.device)
        result = rows.index_copy(1, ids, self._penalised(rows.index_select(1, ids), self._counts))
        where: list[tuple[int, int, int]] = []
        for row in range(rows.shape[0]):
            before = drafted[: first + row]
            where += [(row, id_, before.count(id_)) for id_ in dict.fromkeys(before) if 0 <= id_ < self._vocab_size]
        if where:
            # Recomputed from the bare logit, so that a token weighs the same to the bit drafted or committed.
            row_of, id_of, times = (_as_ids(column) for column in zip(*where, strict=True))
            place = (row_of.to(rows.device), id_of.to(rows.device))
            result[place] = self._penalised(rows[place], self._counts_of(id_of) + times)
        return result

    def _penalised(self, values: Tensor, counts: Tensor) -> Tensor:
        """``values`` [..., m] of tokens that stand in the context, ``counts`` [m] times in the reply."""
        sampling = self.sampling
        if self._repetition:
            penalty = sampling.repetition_penalty
            values = torch.where(values < 0, values * penalty, values / penalty)
        if self._counted:
            offset = sampling.presence_penalty * (counts > 0).to(counts) + sampling.frequency_penalty * counts
            values = values - offset.to(values)
        return values

    def probabilities(self, rows: Tensor, drafted: Seq[int], first: int = 0) -> Tensor:
        """The distributions [n, V] to draw from: penalties, temperature, top-k, top-p, min-p, softmax.

        Raises:
            ValueError: the sampling is greedy, which is no distribution.
        """
        if self.sampling.greedy:
            raise ValueError("greedy decoding has no distribution: use greedy_tokens")
        return filtered(self.logits(rows, drafted, first), self.sampling)

    def greedy_tokens(self, rows: Tensor, drafted: Seq[int], first: int = 0) -> list[int]:
        """The most likely token of each row after the penalties.

        Raises:
            DsparkError: a row holds NaN.
        """
        return _largest(self.logits(rows, drafted, first))


def _largest(logits: Tensor) -> list[int]:
    best = logits.max(-1)
    if best.values.isnan().any():
        raise _no_distribution()
    return [int(token) for token in best.indices.tolist()]


class ReplyLaw:
    """A :class:`TokenLaw` with the reply's own chance: draws the draft (``contracts.DraftLaw``)."""

    def __init__(self, law: TokenLaw, stream: RandomStream, detail: int = 1) -> None:
        self.law = law
        self.stream = stream
        self.detail = detail

    @property
    def greedy(self) -> bool:
        return self.law.sampling.greedy

    def commit(self, ids: Seq[int]) -> None:
        """See :meth:`TokenLaw.commit`."""
        self.law.commit(ids)

    def probabilities(self, rows: Tensor, drafted: Seq[int]) -> Tensor:
        """See :meth:`TokenLaw.probabilities`."""
        return self.law.probabilities(rows, drafted)

    def greedy_tokens(self, rows: Tensor, drafted: Seq[int]) -> list[int]:
        """See :meth:`TokenLaw.greedy_tokens`."""
        return self.law.greedy_tokens(rows, drafted)

    def choose(
        self, logits: Tensor, drafted: Seq[int], ids: Tensor | None = None
    ) -> tuple[int, Tensor | None, float | None]:
        """Draw the slot after ``drafted``; see ``contracts.DraftLaw``.

        A reduced draft vocabulary is spread over the target's only where penalties or q need it.
        """
        if ids is not None and self.law.penalises:
            logits, ids = _spread(logits, ids, self.law.vocab_size, -math.inf), None
        rows, first = logits.unsqueeze(0), len(drafted)
        if self.greedy:
            row = self.law.logits(rows, drafted, first)
            index = _largest(row)[0]
            given = (row[0, index] - row.logsumexp(-1)).exp().item() if self.detail else None
            return index if ids is None else int(ids[index]), None, given
        q = self.law.probabilities(rows, drafted, first)[0]
        index = self.stream.categorical(q)
        given = q[index].item() if self.detail else None
        if ids is None:
            return index, q, given
        return int(ids[index]), _spread(q, ids, self.law.vocab_size, 0.0), given


class SeededStream:
    """The chance of one sequence (``contracts.RandomStream``): the same seed draws the same on every machine.

    Philox counts from its key, so streams share no state; only its raw 64-bit words are used, whose values numpy
    guarantees for all versions.
    """

    def __init__(self, seed: int) -> None:
        self._words = np.random.Philox(key=seed % 2**128)

    def _unit(self) -> float:
        """Uniform in [0, 1), a multiple of 2⁻⁵³."""
        return (int(self._words.random_raw()) >> 11) * 2.0**-53

    def categorical(self, probabilities: Tensor) -> int:
        """An index drawn with ``probabilities`` [V] (of any positive sum), never one of probability zero.

        Raises:
            DsparkError: they hold NaN or infinity, or are all zero.
        """
        reached = probabilities.double().cumsum(0)
        total = reached[-1].item()
        if not 0 < total < math.inf:
            raise _no_distribution()
        # The first index that reaches beyond u; rounding may carry u to the total itself, which the last one ends.
        beyond = min(self._unit() * total, math.nextafter(total, 0.0))
        return int(torch.searchsorted(reached, beyond, right=True))

    def bernoulli(self, probability: float) -> bool:
        """True with ``probability``; always takes one draw."""
        return self._unit() < probability


def _spread(values: Tensor, ids: Tensor, size: int, rest: float) -> Tensor:
    """[size] with ``values`` at ``ids`` and ``rest`` elsewhere."""
    return values.new_full((size,), rest).index_copy_(0, ids, values)


def _as_ids(tokens: Seq[int]) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64)


def _no_distribution() -> DsparkError:
    return DsparkError(
        "the model gave no usable probabilities (not a number, or all zero)",
        "its weights may be damaged, or the sampling settings too extreme",
    )
