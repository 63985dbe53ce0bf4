"""The law of a reply straight from its definition: plain Python, float64, one token at a time, no tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from collections.abc import Sequence as Seq

from dspark_cli.engine.contracts import Sampling

Logits = Callable[[Seq[int]], Seq[float]]


def softmax(logits: Seq[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(value - largest) for value in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def penalised(sampling: Sampling, logits: Seq[float], prompt: Seq[int], reply: Seq[int]) -> list[float]:
    values = list(logits)
    for token in {*prompt, *reply}:
        penalty = sampling.repetition_penalty
        values[token] = values[token] * penalty if values[token] < 0 else values[token] / penalty
    for token in set(reply):
        values[token] -= sampling.presence_penalty + sampling.frequency_penalty * reply.count(token)
    return values


def next_token_law(sampling: Sampling, logits: Seq[float], prompt: Seq[int], reply: Seq[int]) -> list[float]:
    """Probability of each token after ``prompt`` and ``reply``; all on the likeliest one when greedy."""
    values = penalised(sampling, logits, prompt, list(reply))
    if sampling.greedy:
        best = values.index(max(values))
        return [float(token == best) for token in range(len(values))]
    values = [value / sampling.temperature for value in values]
    if 0 < sampling.top_k < len(values):
        least = sorted(values)[-sampling.top_k]
        values = [value if value >= least else -math.inf for value in values]
    if sampling.top_p < 1:
        law, below = softmax(values), 0.0
        rising = sorted(range(len(values)), key=lambda token: values[token])
        for token in rising[:-1]:
            below += law[token]
            if below <= 1 - sampling.top_p:
                values[token] = -math.inf
    law = softmax(values)
    floor = sampling.min_p * max(law)
    return softmax([value if chance >= floor else -math.inf for value, chance in zip(values, law, strict=True)])


def reply_law(
    sampling: Sampling,
    logits_after: Logits,
    prompt: Seq[int],
    tokens: int,
    *,
    stop_ids: Set[int] = frozenset(),
) -> dict[tuple[int, ...], float]:
    """Joint law of the first ``tokens`` output tokens; replies that a stop id ends stand there shorter."""
    laws: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        longer: dict[tuple[int, ...], float] = {}
        for reply, weight in laws.items():
            if reply and reply[-1] in stop_ids:
                longer[reply] = weight
                continue
            law = next_token_law(sampling, logits_after([*prompt, *reply]), prompt, reply)
            longer |= {(*reply, token): weight * chance for token, chance in enumerate(law) if chance > 0}
        laws = longer
    return laws


def largest_error(law: dict[tuple[int, ...], float], truth: dict[tuple[int, ...], float]) -> float:
    """The largest difference of any outcome's probability."""
    return max(abs(law.get(reply, 0.0) - truth.get(reply, 0.0)) for reply in {*law, *truth})
