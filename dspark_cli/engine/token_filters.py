"""Temperature, top-k, top-p and min-p over large vocabularies, with exactly the tokens that transformers keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from dspark_cli.engine.contracts import Sampling

TOP_P_CANDIDATES = 512  # top-p first looks at so many of the largest logits
CHUNK = 2**17  # logits filtered at a time on a CPU, where they stay in its cache


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [n, V] of ``logits`` [n, V]: divided by the temperature (above 0), then top-k, top-p, min-p."""
    result = torch.empty_like(logits)
    step = max(1, CHUNK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        result[part] = _filtered_part(logits[part] / sampling.temperature, sampling)
    return result


def _filtered_part(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [n, V] after top-k, top-p and min-p of ``logits``, which the temperature has divided.

    Where the largest few logits are proved to be the ones that top-k or top-p keeps, the rest is not looked at again;
    rows without a proof are filtered whole.
    """
    if sampling.top_k:
        count, later = sampling.top_k + 1, sampling
    else:
        count, later = TOP_P_CANDIDATES, replace(sampling, top_p=1.0)
    if count >= logits.shape[-1] or (not sampling.top_k and sampling.top_p == 1):
        return _filtered_whole(logits, sampling)
    values, index = logits.topk(count)
    if sampling.top_k:
        proved = values[:, -1] < values[:, -2]  # no tie is cut in two
        values, index = values[:, :-1], index[:, :-1]
    else:
        values, proved = _top_p_of_candidates(values, logits.logsumexp(-1, keepdim=True), sampling.top_p)
    index, order = index.sort(-1)  # ids rise as in a whole row, and with them the order of equals
    few = _filtered_whole(values.gather(1, order), later)
    result = torch.zeros_like(logits).scatter_(1, index, few)
    if not proved.all():
        result[~proved] = _filtered_whole(logits[~proved], sampling)
    return result


def _top_p_of_candidates(candidates: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The falling ``candidates`` [n, m] with −inf for those that top-p drops, and for which rows [n] this is proved.

    A proof needs enough mass among them, no token so near the threshold that rounding could turn it, and no tie cut
    in two. ``log_total`` [n, 1] is the log of the sum over the whole row.
    """
    mass = (candidates.double() - log_total.double()).exp()
    reached = mass.cumsum(-1)
    above = reached - mass
    keep = above < top_p
    keep[:, 0] = True
    margin = 1e-12 if candidates.dtype == torch.float64 else 1e-5
    proved = (reached[:, -1] > top_p + margin) & ((above - top_p).abs() > margin).all(-1)
    cut_tie = keep[:, :-1] & ~keep[:, 1:] & (candidates[:, :-1] == candidates[:, 1:])
    return candidates.masked_fill(~keep, -math.inf), proved & ~keep[:, -1] & ~cut_tie.any(-1)


def _filtered_whole(logits: Tensor, sampling: Sampling) -> Tensor:
    """The same over whole rows, step for step as transformers' processors do it, ties included."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1)
        remove = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        remove[:, -1] = False
        logits = logits.masked_fill(remove.scatter(1, order, remove), -math.inf)
    result = logits.softmax(-1)
    if sampling.min_p > 0:
        too_small = result < sampling.min_p * result.amax(-1, keepdim=True)
        result = logits.masked_fill(too_small, -math.inf).softmax(-1)
    return result
