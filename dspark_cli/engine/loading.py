"""From paths to a pair that can run: target, drafter, tokenizer, template, device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from dspark_kernels import KernelSet, Linear, half_linear, select
from torch import Tensor

from dspark_cli.engine.checkpoints.calibration_file import calibration_binding, matching_calibration
from dspark_cli.engine.checkpoints.checkpoint import Checkpoint, GenerationDefaults
from dspark_cli.engine.checkpoints.drafter_formats import DrafterCheckpoint, open_drafter
from dspark_cli.engine.checkpoints.half_weights import HalfWeights
from dspark_cli.engine.checkpoints.opening import open_checkpoint
from dspark_cli.engine.checkpoints.weight_cache import with_weight_cache
from dspark_cli.engine.contracts import Drafter, Sampling
from dspark_cli.engine.device import Device, choose_device
from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.drafters.ngram import NgramDrafter
from dspark_cli.engine.model_config import Calibration, WeightSource
from dspark_cli.engine.pairing import check_pairing
from dspark_cli.engine.targets.torch_target import TorchTarget
from dspark_cli.engine.text import chat_template, stop_ids, tokenizer
from dspark_cli.engine.text.chat_template import ChatTemplate
from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import CheckpointError, UsageError


@dataclass(frozen=True)
class EngineOptions:
    """What to load and where to run it.

    ``drafter`` is a folder, ``"ngram"`` for prompt lookup, or None for plain decoding. ``threads`` None leaves the
    number to torch; ``context_length`` None means the model's own.
    """

    model: Path
    model_name: str
    drafter: Path | str | None = None
    drafter_name: str | None = None
    device: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    weight_cache: bool = True
    kernels: str = "auto"


@dataclass(frozen=True)
class LoadedPair:
    """Everything a reply needs, loaded and checked."""

    options: EngineOptions
    target: TorchTarget
    drafter: Drafter | None
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    context_length: int
    default_sampling: Sampling
    device: str
    dtype: str
    threads: int
    weights: WeightSource

    @property
    def weights_format(self) -> str:
        """How the weights are stored, and kept where that differs: ``f32``, ``Q4_1 as float16``."""
        return self.weights.weights_format


def load_pair(options: EngineOptions, tell: Callable[[str], None]) -> LoadedPair:
    """Load and check what ``options`` name.

    Raises:
        DsparkError: a file is missing or damaged, the two do not fit, or the machine has no such device.
    """
    device = choose_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    checkpoint = with_weight_cache(open_checkpoint(options.model), tell, options.weight_cache)
    words = _tokenizer(checkpoint)
    for note in words.notes:
        tell(note)
    context_length = _context_length(options, checkpoint)
    # The drafter is checked before the target's weights are read, so that a misfit costs no waiting.
    opened = _open_drafter(options, checkpoint, words, tell)
    kernels, weights = _arithmetic(options.kernels, device, checkpoint.weights)
    target = TorchTarget(checkpoint.config, weights, kernels, device.torch_device, device.dtype)
    drafter = opened(target, kernels, device) if opened is not None else None
    template = chat_template.of_tokenizer(words)
    return LoadedPair(
        options=options,
        target=target,
        drafter=drafter,
        tokenizer=words,
        template=template,
        stop_ids=stop_ids.find(words, template, checkpoint.generation.eos_ids, checkpoint.config.eos_ids),
        context_length=context_length,
        default_sampling=_default_sampling(checkpoint.generation),
        device=str(device.torch_device),
        dtype=str(device.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        weights=weights,
    )


def _arithmetic(name: str, device: Device, weights: WeightSource) -> tuple[KernelSet, WeightSource]:
    """The kernels for a checkpoint, and its weights as those kernels see them.

    On the CPU a step over few rows takes as long as reading the weights does. So ``auto`` keeps them in float16
    there, unless the checkpoint is float32; the products and sums stay float32.

    Raises:
        UsageError: no such kernels here.
    """
    halved = device.torch_device.type == "cpu" and weights.weights_format.lower() != "f32"
    if name == "auto" and halved and half_linear.available():
        name = "fbgemm"
    try:
        kernels = select(name, device.torch_device)
    except ValueError as error:
        raise UsageError(f"--kernels {name}: {error}", "use --kernels auto") from error
    return kernels, HalfWeights(weights) if kernels.name == "fbgemm" else weights


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.kind == "gguf":
        words = tokenizer.from_gguf(checkpoint.metadata)
    else:
        words = tokenizer.from_folder(checkpoint.path)
    if words.vocab_size > checkpoint.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {checkpoint.path} has {words.vocab_size} tokens and its model only "
            f"{checkpoint.config.vocab_size}",
            "tokenizer and weights belong to different models",
        )
    return words


def _context_length(options: EngineOptions, checkpoint: Checkpoint) -> int:
    most = checkpoint.config.context_length
    if options.context_length is None:
        return most
    if not 2 <= options.context_length <= most:
        raise UsageError(
            f"--context-length {options.context_length} is not possible for {options.model_name}",
            f"give a number from 2 to {most}",
        )
    return options.context_length


_Build = Callable[[TorchTarget, KernelSet, Device], Drafter]


def _open_drafter(
    options: EngineOptions, checkpoint: Checkpoint, words: Tokenizer, tell: Callable[[str], None]
) -> _Build | None:
    """Check the drafter's files and whether it fits; what is returned reads its weights."""
    if options.drafter is None:
        return None
    if options.drafter == "ngram":
        return lambda target, kernels, device: NgramDrafter()
    opened = open_drafter(Path(options.drafter))
    own = opened.path / "tokenizer.json"
    theirs = tokenizer.from_folder(opened.path).fingerprint() if own.exists() else None
    check_pairing(opened.config, checkpoint.config, theirs, words.fingerprint() if theirs is not None else None)

    calibration = _calibration(opened, checkpoint, tell)

    def build(target: TorchTarget, kernels: KernelSet, device: Device) -> Drafter:
        own_kernels, own_weights = _arithmetic(options.kernels, device, opened.weights)
        return DSparkDrafter(
            opened.config,
            own_weights,
            own_kernels,
            device.torch_device,
            device.dtype,
            embed=target.embedding.__getitem__,
            head=_shared_head(target, checkpoint, kernels, opened.draft_ids),
            draft_ids=opened.draft_ids,
            calibration=calibration,
        )

    return build


def _calibration(opened: DrafterCheckpoint, checkpoint: Checkpoint, tell: Callable[[str], None]) -> Calibration:
    """The calibration beside the drafter if it was made for this very pair; else none, said aloud."""
    if opened.calibration is None:
        return Calibration()
    try:
        binding = calibration_binding(checkpoint.path, opened.path, opened.config.block_size)
        return matching_calibration(opened.calibration, binding, opened.path)
    except CheckpointError as error:
        tell(f"{error.cause}, so that the drafter's confidences are taken as they are: {error.way_out}")
        return Calibration()


def _shared_head(target: TorchTarget, checkpoint: Checkpoint, kernels: KernelSet, draft_ids: Tensor | None) -> Linear:
    """The target's head, or its rows for a reduced draft vocabulary."""
    if draft_ids is None:
        return target.head
    if checkpoint.config.tied_head:
        rows = target.embedding[draft_ids.to(target.device)]
    else:
        rows = checkpoint.weights.tensor("lm_head.weight")[draft_ids].to(target.device, target.dtype)
    return kernels.pack_linear(rows, None)


def _default_sampling(generation: GenerationDefaults) -> Sampling:
    """What the checkpoint's makers recommend; greedy where they say nothing or ask for it."""
    if not generation.do_sample:
        return Sampling(repetition_penalty=_given(generation.repetition_penalty, 1.0))
    return Sampling(
        temperature=_given(generation.temperature, 1.0),
        top_k=int(_given(generation.top_k, 0)),
        top_p=_given(generation.top_p, 1.0),
        min_p=_given(generation.min_p, 0.0),
        repetition_penalty=_given(generation.repetition_penalty, 1.0),
    )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
