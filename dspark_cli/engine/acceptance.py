"""Which drafted tokens stand: the ratio test, the residual draw and the bonus token.

Speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2): drafted token x ~ q is
accepted with probability min(1, p(x)/q(x)); at the first rejection the next token is drawn from the residual
max(0, p − q), renormalised; if all stand, a bonus token is drawn from the target's next row. Slots are judged in
order, and a stop id that is accepted ends the block: nothing after it is judged.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from collections.abc import Set

from torch import Tensor

from dspark_cli.engine.contracts import RandomStream, Verdict


def judge_greedy(best: Seq[int], drafted: Seq[int], stop_ids: Set[int]) -> Verdict:
    """Accept the drafted tokens that the target would have chosen itself.

    Args:
        best: the target's greedy token of each of the k+1 rows, row i judging draft i.
        drafted: the k verified tokens.
        stop_ids: ids that end a reply.
    """
    for slot, token in enumerate(drafted):
        if token != best[slot]:
            return Verdict(slot, best[slot], "corrected")
        if token in stop_ids:
            return Verdict(slot + 1, None, "stop")
    return Verdict(len(drafted), best[len(drafted)], "bonus")


def judge_sampled(
    p: Tensor, drafted: Seq[int], q: Seq[Tensor] | None, stop_ids: Set[int], stream: RandomStream
) -> Verdict:
    """The ratio test over the k verified tokens, then the residual or the bonus draw.

    Args:
        p: [k+1, V] the target's distribution at each row, given the tokens drafted before it.
        drafted: the k verified tokens.
        q: the very distribution [V] each was drawn from; None where the draft was certain (q(x) = 1).
        stop_ids: ids that end a reply.
        stream: the reply's own chance.
    """
    for slot, token in enumerate(drafted):
        p_token = float(p[slot, token])
        q_token = 1.0 if q is None else float(q[slot][token])
        if not stream.bernoulli(min(1.0, p_token / q_token)):
            return Verdict(
                slot, stream.categorical(residual(p[slot], token, None if q is None else q[slot])), "corrected"
            )
        if token in stop_ids:
            return Verdict(slot + 1, None, "stop")
    return Verdict(len(drafted), stream.categorical(p[len(drafted)]), "bonus")


def residual(p: Tensor, token: int, q: Tensor | None) -> Tensor:
    """What the target has left after a rejection: max(0, p − q) [V], not normalised.

    A certain draft (``q`` None) leaves p without ``token``. Where rounding leaves nothing at all, p and q agree to
    the last bit and p itself is the limit.
    """
    if q is None:
        left = p.clone()
        left[token] = 0.0
    else:
        left = (p - q).clamp_(min=0.0)
    return left if float(left.sum()) > 0.0 else p
