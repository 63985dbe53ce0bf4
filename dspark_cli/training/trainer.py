"""The training run: steps under a budget, checkpoints that a kill cannot hurt, held-out numbers on the way.

Batches depend on the seed and their number alone, and checkpoints hold weights, optimizer and where the batches stand,
so a resumed run goes on exactly as the uninterrupted one would have. The learning rate is a function of the share of
the budget spent: it rises, stays, and falls to zero over the last part. The state before the fall is kept, to go on
from with more budget.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark_cli.engine.model_config import DrafterConfig
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.paths import write_atomically
from dspark_cli.training.anchor_blocks import AnchorBatch, AnchorSampler
from dspark_cli.training.draft_model import DraftModel
from dspark_cli.training.losses import LawMaker, LossParts, LossWeights, TargetLaw, draft_loss, greedy_match
from dspark_cli.training.optimizer import make_optimizers
from dspark_cli.training.target_parts import TargetParts

_CHECKPOINT, _BEFORE_FALL = "checkpoint.pt", "before-fall.pt"
_FORMAT = 1
OPTIMIZERS = ("adamw", "muon")


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many anchors or so many seconds of training, whichever comes first."""

    anchors: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not any((self.anchors, self.seconds)):
            raise UsageError("a training run needs a budget", "give a number of anchors or a time")

    def spent(self, anchors: int, seconds: float) -> float:
        """The share spent, 1 or more when the run is over."""
        shares = (anchors / self.anchors if self.anchors else 0.0, seconds / self.seconds if self.seconds else 0.0)
        return max(shares)


@dataclass(frozen=True)
class Course:
    """How to learn. ``fall`` is the last share of the budget, over which the rate falls; ``warmup`` is in steps."""

    seed: int = 0
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 30
    fall: float = 0.35
    clip: float = 1.0
    loss: LossWeights = field(default_factory=LossWeights)
    checkpoint_seconds: float = 120.0
    held_out_steps: int = 100

    def check(self) -> None:
        """Raises UsageError for a value that cannot be meant."""
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"there is no optimizer {self.optimizer!r}", f"the kinds are {', '.join(OPTIMIZERS)}")
        for name, value in (("learning rate", self.lr), ("decay", self.loss.decay), ("warmup", self.warmup + 1)):
            if not 0 < value < math.inf:
                raise UsageError(f"the {name} {value:g} cannot be meant", "give a number above 0")

    def rate(self, step: int, spent: float) -> float:
        """The learning rate of step ``step`` (from 0), with ``spent`` of the budget."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        left = (1 - spent) / self.fall if self.fall else 1.0
        return self.lr * rise * min(1.0, max(0.0, left))


@dataclass(frozen=True)
class Progress:
    """One line of the log. Means are over the steps since the last line."""

    step: int
    anchors: int
    seconds: float
    spent: float
    rate: float
    loss: float
    cross_entropy: float
    distance: float
    confidence: float
    acceptance: tuple[float, ...]
    anchors_per_second: float


@dataclass(frozen=True)
class HeldOut:
    """Teacher-forced estimates on held-out sequences.

    ``acceptance[k]`` is the mean of 1 − ½‖p_d − p_t‖₁ in slot k + 1 and ``accepted_length`` the mean of one plus
    the sum of its products: drafts drawn at temperature 1. ``match[k]`` and ``greedy_length`` are the same for
    greedy drafts of greedy replies, where slot k + 1 is right or wrong; empty and 0 without greedy replies.
    """

    step: int
    loss: float
    acceptance: tuple[float, ...]
    accepted_length: float
    match: tuple[float, ...]
    greedy_length: float


@dataclass(frozen=True)
class HeldOutPart:
    """A batch that is never learned from; ``greedy`` [A] says which anchors stand in greedy replies."""

    batch: AnchorBatch
    greedy: Tensor


Tell = Callable[[Progress | HeldOut], None]


class Trainer:
    """A run in the folder ``run``.

    Args:
        model: with its first weights.
        target: whose law is learned.
        draft_ids: target ids of the draft vocabulary [V_draft], rising; None for the whole vocabulary.
        sampler: makes the batches.
        held_out: batches to judge by.
        tell: shown every line of the log.
    """

    def __init__(
        self, model: DraftModel, target: TargetParts, draft_ids: Tensor | None, sampler: AnchorSampler,
        held_out: Seq[HeldOutPart], course: Course, run: Path, tell: Tell,
    ) -> None:  # fmt: skip
        self.model, self.course, self.run = model, course, run
        self._draft_ids = draft_ids
        self._law_maker = LawMaker(target.norm.to(model.head.device), target.eps, model.head, model.compute)
        self._sampler, self._held_out, self._tell = sampler, held_out, tell
        vocabulary = model.config.vocab_size
        self._draft_of = torch.arange(vocabulary)
        if draft_ids is not None:
            self._draft_of = torch.full((vocabulary,), -1).index_put_((draft_ids,), torch.arange(len(draft_ids)))
        self._device = model.head.device
        self._draft_of = self._draft_of.to(self._device)
        self._optimizers = make_optimizers(model, course.optimizer, course.lr, course.weight_decay, model.compute)
        self.step = self.anchors = 0
        self.seconds = 0.0
        self._falling = False

    def train(
        self, budget: Budget, passed: Callable[[float], None] | None = None, most_steps: int | None = None
    ) -> None:
        """Go on until the budget is spent (or ``most_steps`` more were made), then keep the state.

        ``passed`` is told the share spent after every step.
        """
        # Products of small probabilities end in denormal numbers, which many processors multiply ten times slower.
        torch.set_flush_denormal(True)
        try:
            self._train(budget, passed or (lambda spent: None), most_steps)
        finally:
            torch.set_flush_denormal(False)
        self.save()

    def _train(self, budget: Budget, passed: Callable[[float], None], most_steps: int | None) -> None:
        lately = _Lately()
        saved = time.monotonic()
        last = None if most_steps is None else self.step + most_steps
        while (spent := budget.spent(self.anchors, self.seconds)) < 1 and self.step != last:
            begun = time.monotonic()
            if self._falls(spent) and not self._falling:
                self.save(_BEFORE_FALL)
                self._falling = True
            rate = self.course.rate(self.step, spent)
            batch = self._sampler.batch().to(self._device)
            lately.add(self._learn(batch, rate), len(batch.anchor_at))
            self.step += 1
            self.anchors += len(batch.anchor_at)
            passed(spent)
            if self.step % self.course.held_out_steps == 0:
                self._tell(lately.take(self, spent, rate))
                self._tell(self.judge())
            self.seconds += time.monotonic() - begun
            if time.monotonic() - saved >= self.course.checkpoint_seconds:
                self.save()
                saved = time.monotonic()

    def _learn(self, batch: AnchorBatch, rate: float) -> LossParts:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate
        parts = self._loss(batch)
        if not torch.isfinite(parts.total):
            raise DsparkError(f"the loss of step {self.step + 1} is not finite", "resume with a lower learning rate")
        parts.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.course.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        return parts

    def _law(self, batch: AnchorBatch) -> TargetLaw:
        return self._law_maker(batch.last, batch.log_mass)

    def _loss(self, batch: AnchorBatch) -> LossParts:
        return draft_loss(self.model, self.model(batch), batch, self._law(batch), self._draft_of, self.course.loss)

    @torch.no_grad()
    def judge(self) -> HeldOut:
        """The held-out estimates of the weights as they are."""
        losses, acceptance, valid, match, greedy = [], [], [], [], []
        for part in self._held_out:
            batch = part.batch.to(self._device)
            rows = self.model(batch)
            parts = draft_loss(self.model, rows, batch, self._law(batch), self._draft_of, self.course.loss)
            losses.append(float(parts.total))
            acceptance.append(parts.acceptance.cpu())
            valid.append(part.batch.valid)
            match.append(greedy_match(self.model, rows, batch, self._draft_of).cpu())
            greedy.append(part.greedy)
        inside, of_greedy = torch.cat(valid), torch.cat(greedy)
        slots, length = _survival(torch.cat(acceptance), inside)
        matches, greedy_length = _survival(torch.cat(match).float()[of_greedy], inside[of_greedy])
        return HeldOut(self.step, sum(losses) / len(losses), slots, length, matches, greedy_length)

    def save(self, name: str = _CHECKPOINT) -> None:
        """Write the whole state to ``name`` in the run's folder; the old file stands until the new one is whole."""
        content = io.BytesIO()
        state = {
            "format": _FORMAT,
            "config": asdict(self.model.config),
            "draft_ids": self._draft_ids,
            "compute": str(self.model.compute).removeprefix("torch."),
            "course": self._binding(),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self.step,
            "anchors": self.anchors,
            "seconds": self.seconds,
            "falling": self._falling,
            "sampler": self._sampler.state(),
        }
        torch.save(state, content)
        try:
            write_atomically(self.run / name, content.getvalue())
        except OSError as error:
            raise DsparkError(
                f"the checkpoint {self.run / name} cannot be written ({error.strerror})", "make room on the disk"
            ) from error

    def resume(self, budget: Budget) -> bool:
        """Take up the run in this folder; False where there is none.

        With a budget that the rate's fall has not reached yet, this goes on from before an earlier fall.

        Raises:
            DsparkError: the checkpoint is damaged or of a run with other options.
        """
        state = self._read(_CHECKPOINT)
        if state is None:
            return False
        if state["falling"] and not self._falls(budget.spent(state["anchors"], state["seconds"])):
            state = self._read(_BEFORE_FALL) or state
        self._take(state)
        return True

    def _falls(self, spent: float) -> bool:
        """Whether the rate is falling when this share of the budget is spent."""
        return self.course.fall > 0 and 1 - spent <= self.course.fall

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.run / name
        if not path.exists():
            return None
        return read_checkpoint(path)

    def _take(self, state: dict[str, Any]) -> None:
        same_ids = (self._draft_ids is None) == (state["draft_ids"] is None)
        if same_ids and self._draft_ids is not None:
            same_ids = torch.equal(self._draft_ids, state["draft_ids"])
        if state["config"] != asdict(self.model.config) or state["course"] != self._binding() or not same_ids:
            raise DsparkError(
                f"the run in {self.run} was begun with other options", "repeat its options or use another folder"
            )
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.step, self.anchors, self.seconds = state["step"], state["anchors"], state["seconds"]
        self._falling = state["falling"]
        self._sampler.restore(state["sampler"])

    def _binding(self) -> dict[str, Any]:
        """The options that a resumed run must share."""
        return {"seed": self.course.seed, "optimizer": self.course.optimizer, "loss": asdict(self.course.loss)}

    def finish(self) -> tuple[DrafterConfig, dict[str, Tensor], Tensor | None]:
        """What a drafter's folder is written from: config, tensors by DeepSpec names, draft ids."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}
        return self.model.config, tensors, self._draft_ids


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in ``path``.

    Raises:
        DsparkError: it is not a whole checkpoint of this format.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["format"] != _FORMAT:
            raise ValueError(f"format {state['format']}")
    except Exception as error:  # torch.load raises many kinds
        raise DsparkError(f"the checkpoint {path} is damaged ({error})", "delete it and start again") from error
    return state


@dataclass(frozen=True)
class Begun:
    """What a run chose at its beginning and keeps: its draft vocabulary (None: all) and the type of its products."""

    draft_ids: Tensor | None
    compute: torch.dtype


def begun_run(run: Path) -> Begun | None:
    """What the run in the folder keeps to; None where there is none.

    Raises:
        DsparkError: its checkpoint is damaged.
    """
    path = run / _CHECKPOINT
    if not path.exists():
        return None
    state = read_checkpoint(path)
    return Begun(state["draft_ids"], getattr(torch, state["compute"]))


class _Lately:
    """Means since the last line of the log."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._parts: list[tuple[float, ...]] = []
        self._acceptance: list[tuple[float, ...]] = []
        self._anchors, self._since = 0, time.monotonic()

    def add(self, parts: LossParts, anchors: int) -> None:
        total = float(parts.total.detach())
        self._parts.append((total, parts.cross_entropy, parts.distance, parts.confidence))
        self._acceptance.append(parts.slots)
        self._anchors += anchors

    def take(self, trainer: Trainer, spent: float, rate: float) -> Progress:
        passed = time.monotonic() - self._since
        means, slots = _means(self._parts), _means(self._acceptance)
        so_far = trainer.step, trainer.anchors, trainer.seconds, spent, rate
        loss, entropy, distance, confidence = means
        line = Progress(*so_far, loss, entropy, distance, confidence, slots, self._anchors / passed)
        self._clear()
        return line


def _means(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(column) for column in zip(*rows, strict=True))


def _survival(accepted: Tensor, valid: Tensor) -> tuple[tuple[float, ...], float]:
    """Mean of each slot, and 1 + the mean sum of running products, over whole blocks; [A, γ] both."""
    whole = accepted[valid.all(1)]
    if not len(whole):
        return (), 0.0
    return tuple(whole.mean(0).tolist()), 1 + float(whole.cumprod(1).sum(1).mean())


def faster_type(width: int, inner: int, device: torch.device) -> torch.dtype:
    """bfloat16 where ``device`` multiplies it clearly faster than float32; a processor is measured."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        rows, weight = torch.ones(512, width, dtype=dtype), torch.ones(inner, width, dtype=dtype)
        spans = []
        for _ in range(4):
            begun = time.perf_counter()
            rows @ weight.T
            spans.append(time.perf_counter() - begun)
        times[dtype] = min(spans)
    return torch.bfloat16 if times[torch.bfloat16] < 0.6 * times[torch.float32] else torch.float32
