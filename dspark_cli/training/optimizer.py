"""AdamW for vectors and tables, and Muon for the matrices in between, if asked for.

Muon moves a matrix along the nearest orthogonal one to its momentum, found by a Newton–Schulz iteration; with steps
scaled by 0.2·√(longer side) they are as long as AdamW's, so both share one learning rate. Its products run in the
type in which this machine is fast.
Sources: K. Jordan et al., Muon (2024), for the iteration; J. Liu et al., Muon is scalable (2025), for the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_TERMS = (3.4445, -4.7750, 2.0315)
_TIMES = 5


class Muon(torch.optim.Optimizer):
    """``compute`` is the type of the products; momentum is Nesterov's."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float, decay: float, compute: torch.dtype
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "decay": decay})
        self._compute = compute

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, group)

    def _move(self, matrix: nn.Parameter, group: dict[str, Any]) -> None:
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum, keep = state["momentum"], group["momentum"]
        momentum.lerp_(matrix.grad, 1 - keep)
        direction = orthogonalised(matrix.grad.lerp(momentum, keep), self._compute)
        matrix.mul_(1 - group["lr"] * group["decay"])
        matrix.add_(direction.to(matrix.dtype), alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonalised(matrix: Tensor, compute: torch.dtype) -> Tensor:
    """About U·Vᵀ of ``matrix`` = U·S·Vᵀ: singular values between 0.7 and 1.2."""
    a, b, c = _TERMS
    x = (matrix / matrix.norm().clamp_min(1e-12)).to(compute)
    tall = x.shape[0] > x.shape[1]
    x = x.mT.contiguous() if tall else x
    for _ in range(_TIMES):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    out: Tensor = x.mT if tall else x
    return out


def make_optimizers(
    model: nn.Module, kind: str, lr: float, weight_decay: float, compute: torch.dtype
) -> list[torch.optim.Optimizer]:
    """``kind`` is ``adamw`` or ``muon``. Norms, biases and tables do not decay."""
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    matrices = {n: p for n, p in named.items() if p.ndim == 2 and not n.startswith(("markov_head.markov_w", "conf"))}
    rest = [p for n, p in named.items() if n not in matrices]
    plain = {"params": rest, "weight_decay": 0.0}
    if kind == "muon":
        first: torch.optim.Optimizer = Muon(matrices.values(), lr, 0.95, weight_decay, compute)
        return [first, torch.optim.AdamW([plain], lr=lr, betas=(0.9, 0.95), fused=True)]
    decayed = {"params": list(matrices.values()), "weight_decay": weight_decay}
    return [torch.optim.AdamW([decayed, plain], lr=lr, betas=(0.9, 0.95), fused=True)]
