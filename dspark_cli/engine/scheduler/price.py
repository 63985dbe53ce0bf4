"""Admission at a price of time: which drafted slots are worth the rows they add to a step.

Slot k goes in while some m ≥ k has Σ_{j=k..m} â_j > λ·(T(1+m) − T(k)): the tokens that slots k … m are expected to
bring, against the price of their time. â_k = a_k is known; later ones are what :class:`outlook.Outlook` expects of
them, given c_1 … c_k and earlier rounds. Looking ahead to m pays for a stair that slot k alone would not.

Why this keeps the output distribution: c_k is a function of what is known before x_k is drawn. Whether slot k goes in
depends on c_1 … c_k, on the curve, on λ and on averages over earlier rounds, all frozen before the draft. c_{k+1}
knows x_k and is looked at only once slot k is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, pairwise
from operator import mul

from dspark_cli.engine.scheduler.outlook import Outlook


class Step:
    """The prices of one step, frozen before its draft.

    ``ms[w]`` is the time of a step over w rows (``ms[0]`` is no step: 0), ``cost[w]`` its price in tokens,
    ``plain_ms`` the time of one row a reply. ``draft`` and ``cut_back`` are the prices of one draft and one rejection.
    """

    __slots__ = ("cost", "cut_back", "cut_back_ms", "draft", "draft_ms", "ms", "plain_ms", "price", "replies")

    def __init__(self, ms: Sequence[float], draft_ms: float, cut_back_ms: float, price: float, replies: int) -> None:
        self.replies = replies
        self.price = price
        self.ms = ms
        self.cost = [price * one for one in ms]
        self.plain_ms = ms[replies]
        self.draft_ms = draft_ms
        self.draft = price * draft_ms
        self.cut_back_ms = cut_back_ms
        self.cut_back = price * cut_back_ms


def admit(confidence: Sequence[float], step: Step, outlook: Outlook, budget: int) -> int:
    """How many slots of one reply go in, each decided before its token is drawn; at most ``budget``."""
    cost, cut = step.cost, step.cut_back
    survival, total = 1.0, 0.0
    last = min(len(confidence), budget)
    for slot in range(last):
        before = survival
        survival *= confidence[slot]
        total += confidence[slot]
        paid = cost[slot + 1]
        if survival > cost[slot + 2] - paid + cut * (before - survival):
            continue
        # The slot alone does not pay. Do the slots after it, as far as they can be foreseen?
        gain = reached = survival
        row = slot + 3
        for expected in outlook.ahead(slot, total / (slot + 1), last):
            reached *= expected
            gain += reached
            if gain > cost[row] - paid + cut * (before - reached):
                break
            row += 1
        else:
            return slot
    return last


def admit_known(confidence: Sequence[float], step: Step, budget: int) -> int:
    """The best length where the whole draft is certain given the past, so that all of it may be looked at."""
    cost, cut = step.cost, step.cut_back
    survival, value, best, length = 1.0, 0.0, cost[1], 0
    for slot in range(min(len(confidence), budget)):
        survival *= confidence[slot]
        value += survival
        net = cost[slot + 2] + cut * (1.0 - survival) - value
        if net < best:
            best, length = net, slot + 1
    return length


def admit_many(confidences: Sequence[Sequence[float]], step: Step, outlook: Outlook, budget: int) -> list[int]:
    """How many slots of each of several replies go in: best survival first, one price, at most ``budget`` in all.

    The frontier of a reply is its first slot that is not yet in. Further rows are foreseen to be filled with the best
    frontier slots of all replies and what is expected behind them; the foresight is made anew where it fell short.
    A slot's admission depends on slots that went in before it and on frontiers at that time or earlier: on nothing
    that is known later than the draws of slots already in.
    """
    cost, cut = step.cost, step.cut_back
    lengths = [0] * len(confidences)
    # Of each reply: −a of its frontier slot, the slot, the reply, a of the slot before, the sum of its confidences.
    frontier = [(-row[0], 0, reply, 1.0, row[0]) for reply, row in enumerate(confidences) if row]
    heapify(frontier)
    rows = step.replies
    last = rows + min(budget, sum(map(len, confidences)))
    base = horizon = rows
    foreseen: list[float] = []
    known: dict[tuple[int, int], list[float]] = {}
    while frontier and rows < last:
        negative, slot, reply, before, total = frontier[0]
        gain = -negative - cut * (before + negative)
        if gain <= cost[rows + 1] - cost[rows]:
            rest = foreseen[horizon - base - 1] - foreseen[rows - base] if rows < horizon else 0.0
            if rows >= horizon or gain + rest <= cost[horizon] - cost[rows]:
                base = rows
                foreseen, best = _foresee(frontier, confidences, step, outlook, (rows, last), known)
                if not best:
                    break
                horizon = base + best
        rows += 1
        lengths[reply] = slot + 1
        row = confidences[reply]
        if slot + 1 < len(row):
            c = row[slot + 1]
            heapreplace(frontier, (negative * c, slot + 1, reply, -negative, total + c))
        else:
            heappop(frontier)
    return lengths


def _foresee(
    frontier: Sequence[tuple[float, int, int, float, float]],
    confidences: Sequence[Sequence[float]],
    step: Step,
    outlook: Outlook,
    span: tuple[int, int],
    known: dict[tuple[int, int], list[float]],
) -> tuple[list[float], int]:
    """Running sums of what the best further rows should bring, and how many rows are worth most (0: none is).

    ``span``: rows so far and at most. ``known``: survivals from a frontier slot on, by the slot and the mean
    confidence up to it in sixteenths, so that many replies share them.
    """
    rows, last = span
    keep, cut = 1.0 + step.cut_back, step.cut_back
    found: list[float] = []
    for negative, slot, reply, before, total in frontier:
        place = (slot, int(16.0 * total / (slot + 1)))
        onward = known.get(place)
        if onward is None:
            expected = outlook.ahead(slot, (place[1] + 0.5) / 16.0, len(outlook.mean))
            reached = list(accumulate(expected, mul, initial=1.0))
            # Of one slot after another: survival, less what a rejection between it and the one before it costs.
            onward = known[place] = [keep * after - cut * before for before, after in pairwise(reached)]
        found.append(-negative - cut * (before + negative))
        found += [-negative * one for one in onward[: len(confidences[reply]) - slot - 1]]
    found.sort(reverse=True)
    foreseen = list(accumulate(found))
    paid = step.cost[rows]
    net = [gain - one for gain, one in zip(foreseen, step.cost[rows + 1 : last + 1], strict=False)]
    best = max(net)
    return foreseen, net.index(best) + 1 if best + paid > 0.0 else 0
