"""What training needs of the target: its frozen tables, its layers to begin from, and its law on cached rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dspark_cli.engine.model_config import TargetConfig, WeightSource
from dspark_cli.paths import write_atomically
from dspark_cli.training.draft_model import DraftModel
from dspark_cli.training.feature_cache import FeatureCache, ShardTensors
from dspark_cli.training.losses import LawMaker

_ROWS = 256


@dataclass(frozen=True)
class TargetParts:
    """``embedding`` and ``head`` [V, H], ``norm`` [H] before the head, all float32."""

    config: TargetConfig
    weights: WeightSource
    embedding: Tensor
    head: Tensor
    norm: Tensor

    @property
    def eps(self) -> float:
        return self.config.layer.norm_eps


def read_target(config: TargetConfig, weights: WeightSource) -> TargetParts:
    embedding = weights.tensor("model.embed_tokens.weight")
    tied = config.tied_head or "lm_head.weight" not in weights
    head = embedding if tied else weights.tensor("lm_head.weight")
    return TargetParts(config, weights, embedding, head, weights.tensor("model.norm.weight"))


@torch.no_grad()
def log_mass(laws: LawMaker, last: Tensor, ids: Tensor) -> Tensor:
    """Log-sum-exp of the target's logits [n] after rows ``last`` [n, H] of the final layer's output.

    ``laws`` is made of the whole head. ``ids`` int64 [n] are those that follow: being likely ones, their logits are
    a level from which the others differ little.
    """
    parts = []
    for rows, following in zip(torch.split(last.float(), _ROWS), torch.split(ids, _ROWS), strict=True):
        rows, following = rows.to(laws.device), following.to(laws.device)
        level = laws.logits_at(rows, following)
        parts.append((torch.logsumexp(laws.logits(rows, level), 1) + level).cpu())
    return torch.cat(parts)


def cached_log_mass(
    cache: FeatureCache,
    target: TargetParts,
    compute: torch.dtype,
    device: torch.device,
    tell: Callable[[int, int], None],
) -> list[Tensor]:
    """Log-sum-exp [N] of every shard of ``cache``, computed once and kept beside it; NaN in prompts.

    ``compute`` is the type of the products, made on ``device``; ``tell(done, of)`` counts shards.
    """
    found, laws = [], None
    for index, shard in enumerate(cache.shards):
        path = cache.folder / "log-mass" / shard.name
        made_of = f"{shard.sha256} {compute}"
        kept = _kept(path, made_of)
        if kept is None:
            laws = laws or LawMaker(target.norm.to(device), target.eps, target.head.to(device), compute)
            kept = _log_mass_of(cache.read(shard), target.config.layer.hidden_size, laws)
            write_atomically(path, save({"log_mass": kept}, {"made of": made_of}))
        found.append(kept)
        tell(index + 1, len(cache.shards))
    return found


def _log_mass_of(shard: ShardTensors, hidden: int, laws: LawMaker) -> Tensor:
    """Of the rows from the last prompt token on, as nothing before them is learned from."""
    wanted = torch.zeros(len(shard.ids), dtype=torch.bool)
    edges = shard.starts.tolist()
    for start, stop, reply in zip(edges, edges[1:], shard.reply_starts.tolist(), strict=False):
        wanted[start + max(reply - 1, 0) : stop] = True
    at = wanted.nonzero().squeeze(1)
    following = shard.ids[(at + 1).clamp(max=len(shard.ids) - 1)].long()
    out = torch.full((len(shard.ids),), torch.nan)
    out[at] = log_mass(laws, shard.features[at, -hidden:], following)
    return out


def _kept(path: Path, made_of: str) -> Tensor | None:
    """What was kept; None where there is nothing, or something ``made_of`` other features."""
    try:
        with safe_open(path, "pt") as file:
            same = (file.metadata() or {}).get("made of") == made_of
            return file.get_tensor("log_mass") if same else None
    except (OSError, SafetensorError):
        return None


def draft_vocabulary(counts: Tensor, size: int, always: frozenset[int]) -> Tensor:
    """The ``size`` most frequent ids of ``counts`` [V], those of ``always`` among them, rising: int64 [size]."""
    weighted = counts.double()
    weighted[list(always)] = torch.inf
    # Of equals the smaller id, which a tokenizer learned earlier, is taken first.
    order = torch.sort(weighted, descending=True, stable=True).indices
    return order[:size].sort().values


@torch.no_grad()
def start_weights(model: DraftModel, target: TargetParts, seed: int, from_target: bool) -> None:
    """Fill ``model``: at random, or with the last layers of the target and the last tap passed through ``fc``."""
    chance = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("bias") or name.startswith("confidence_head") or name == "markov_head.markov_w2.weight":
            weight.zero_()
        elif weight.ndim == 2:
            deviation = 1.0 if "markov_w1" in name else weight.shape[1] ** -0.5
            # Drawn on the CPU, so that a seed means the same everywhere.
            weight.copy_(torch.empty(weight.shape).normal_(std=deviation, generator=chance))
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.5)
        else:
            weight.fill_(1.0)
    if model.markov_head is not None:
        model.markov_head.markov_w1.weight.mul_(model.config.markov_rank**-0.5)
    if from_target:
        _begin_from_layers(model, target)


def _begin_from_layers(model: DraftModel, target: TargetParts) -> None:
    shape, count = model.config.layer, model.config.layers
    first = target.config.layers - count
    own = dict(model.named_parameters())
    norms: list[Tensor] = []
    for index in range(count):
        prefix = f"model.layers.{first + index}."
        for name, weight in own.items():
            if name.startswith(f"layers.{index}.") and (theirs := prefix + name.split(".", 2)[2]) in target.weights:
                weight.copy_(target.weights.tensor(theirs))
        norm = own[f"layers.{index}.input_layernorm.weight"]
        norms.append(norm)
        if shape.qk_norm and not target.config.layer.qk_norm:
            # The norm fixes the length of queries and keys; its weight gives back what they had on average.
            for kind in ("q", "k"):
                rows = own[f"layers.{index}.self_attn.{kind}_proj.weight"] * norm
                own[f"layers.{index}.self_attn.{kind}_norm.weight"].fill_(rows.square().sum(1).mean().sqrt())
    # Context rows go without an input norm, so their one norm takes the layers' mean weight.
    model.hidden_norm.weight.copy_(torch.stack(norms).mean(0))
    model.norm.weight.copy_(target.norm)
    hidden = shape.hidden_size
    model.fc.weight.mul_(0.1)
    model.fc.weight[:, -hidden:] += torch.eye(hidden, device=model.fc.weight.device)
