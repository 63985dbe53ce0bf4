"""``dspark train``: make a drafter for any target."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_cli import __version__
from dspark_cli.commands import shared_options
from dspark_cli.commands.opening import open_engine
from dspark_cli.commands.shared_options import with_settings
from dspark_cli.console import Console
from dspark_cli.errors import UsageError
from dspark_cli.settings import Merged, Settings

if TYPE_CHECKING:
    from dspark_cli.engine.loading import LoadedPair
    from dspark_cli.training.feature_cache import FeatureCache
    from dspark_cli.training.prompt_synthesis import SynthesisRecipe
    from dspark_cli.training.target_parts import TargetParts
    from dspark_cli.training.trainer import Budget, HeldOut, Progress, Trainer
    from dspark_cli.training.training_run import DrafterShape

_HOUR = 3600.0
_TEXT, _DRAFTER, _LEARNING = "Text", "Drafter", "Learning"


@with_settings("model", *shared_options.MACHINE)
def train(
    merged: Merged,
    console: Console,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the drafter.", show_default=False)],
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where features and checkpoints are kept.  [default: DIR.work beside --out]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the work folder.")] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_TEXT,
            help="Prompts: JSONL, or text with one a line.  [default: the model writes them itself]",
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_TEXT, help="Text to learn from, prompts included.  [default: 500000]"
        ),
    ] = 500_000,
    reply_tokens: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_TEXT, help="The most tokens of a reply.  [default: 256]")
    ] = 256,
    greedy_share: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", rich_help_panel=_TEXT, help="Share of greedy replies; the rest is drawn.  [default: 0.5]"
        ),
    ] = 0.5,
    temperature: Annotated[
        float, typer.Option(metavar="NUMBER", rich_help_panel=_TEXT, help="Of the drawn replies.  [default: 1]")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_TEXT, help="For the text and for learning.  [default: 0]")
    ] = 0,
    layers: Annotated[int, typer.Option(metavar="N", rich_help_panel=_DRAFTER, help="Layers.  [default: 2]")] = 2,
    block_size: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_DRAFTER, help="Tokens a draft.  [default: 7]")
    ] = 7,
    head: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            rich_help_panel=_DRAFTER,
            help="Sequential head: vanilla, gated, rnn or none.  [default: vanilla]",
        ),
    ] = "vanilla",
    rank: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_DRAFTER, help="Rank of the head.  [default: 64]")
    ] = 64,
    draft_vocabulary: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_DRAFTER,
            help="Most frequent tokens to draft from; 0 for all.  [default: 8192]",
        ),
    ] = 8192,
    taps: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            rich_help_panel=_DRAFTER,
            help="Layers of the model to read.  [default: five, up to the last]",
            show_default=False,
        ),
    ] = None,
    mask_token: Annotated[
        int | None,
        typer.Option(
            metavar="ID", rich_help_panel=_DRAFTER, help="Stands for what is not known.  [default: an unused id]"
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N", rich_help_panel=_LEARNING, help="How long to learn.  [default: 60, without --anchors]"
        ),
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=_LEARNING, help="How many drafts to learn from.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_LEARNING, help="muon or adamw.  [default: muon]")
    ] = "muon",
    learning_rate: Annotated[
        float,
        typer.Option(
            "--learning-rate", metavar="NUMBER", rich_help_panel=_LEARNING, help="At its highest.  [default: 0.006]"
        ),
    ] = 6e-3,
    batch: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_LEARNING, help="Drafts a step.  [default: 384]")
    ] = 384,
    decay: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            rich_help_panel=_LEARNING,
            help="Slot k weighs exp(-(k-1)/decay).  [default: the block size]",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            rich_help_panel=_LEARNING,
            help="Of products: float32, bfloat16, or auto, the faster.  [default: auto]",
        ),
    ] = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Write embedding and head into the drafter too, for other runtimes.")
    ] = False,
) -> None:
    """Make a DSpark drafter for a model, from text that the model writes itself.

    The model answers prompts, and what its layers put out is kept on disk. From that a small drafter learns, under a
    budget of time or drafts, with checkpoints: a run that was killed goes on with --resume. At the end the drafter is
    written to --out, to be used with --drafter.
    """  # fmt: skip
    from dspark_cli.training.losses import LossWeights
    from dspark_cli.training.trainer import Course
    from dspark_cli.training.training_run import DrafterShape

    budget = _budget(anchors, minutes)
    shape = DrafterShape(
        mask_token_id=-1 if mask_token is None else mask_token, layers=layers, block_size=block_size, rank=rank,
        head=head, draft_vocabulary=draft_vocabulary, taps=_numbers(taps), precision=precision,
        anchors_per_batch=batch,
    )  # fmt: skip
    course = Course(seed=seed, optimizer=optimizer, lr=learning_rate, loss=LossWeights(decay=decay or block_size))
    recipe = _recipe(seed, greedy_share, temperature, reply_tokens)
    shape.check()
    course.check()
    folder = work if work is not None else out.with_name(f"{out.name}.work")
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UsageError(f"there is a run in {folder} already", "go on with --resume, or delete the folder")
    texts = _given(prompts) if prompts is not None else None
    from dspark_cli.training.feature_making import remove_parts

    for place in (folder, out):
        remove_parts(place)
    settings = replace(merged.settings, kernels=_text_kernels(merged.settings, precision))
    engine, _ = open_engine(replace(settings, drafter="none", schedule=None, think=None), console)
    with closing(engine):
        cache = _features(engine.pair, folder, shape, recipe, tokens, texts, console)
        target = _target(engine.pair)
        from dspark_cli.training.training_run import open_run, with_mask

        shape = with_mask(shape, cache, engine.pair.tokenizer.special_ids, engine.pair.stop_ids)
        trainer = open_run(
            cache, target, shape, course, engine.pair.stop_ids, folder / "run",
            lambda line: _show(line, console), lambda done, of: console.passing(f"reading features: {done} of {of}"),
            device=engine.pair.target.device,
        )  # fmt: skip
        name = engine.pair.options.model_name
        context_length = engine.pair.context_length
    if trainer.resume(budget):
        console.say(f"Going on after {trainer.anchors} drafts and {trainer.seconds / 60:.0f} minutes.")
    trainer.train(budget, lambda spent: console.passing(f"learning: {spent:.0%}, {trainer.anchors} drafts"))
    _write(trainer, target, name, context_length, out, full)
    console.fresh_line()
    model = f"--model {merged.settings.model} " if merged.settings.model else ""
    console.say(f"The drafter is in {out}. Try: dspark eval {model}--drafter {out}")


def _text_kernels(settings: Settings, precision: str) -> str:
    """The kernels to make the text with. Many replies at a time are a matter of arithmetic, not of memory as one is.

    Products in bfloat16 are as good for features as they are for learning, where they are quick.
    """
    if settings.kernels != "auto" or settings.device not in ("auto", "cpu") or precision == "float32":
        return settings.kernels
    import torch

    from dspark_cli.training.trainer import faster_type

    if torch.cuda.is_available() and settings.device == "auto":
        return settings.kernels
    compute = torch.bfloat16 if precision == "bfloat16" else faster_type(1024, 1024, torch.device("cpu"))
    return "mixed" if compute == torch.bfloat16 else settings.kernels


def _budget(anchors: int | None, minutes: float | None) -> Budget:
    from dspark_cli.training.trainer import Budget

    for name, value in (("--anchors", anchors), ("--minutes", minutes)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} {value:g} is no budget", "give a number above 0")
    seconds = None if minutes is None else 60 * minutes
    return Budget(anchors, _HOUR if anchors is None and minutes is None else seconds)


def _recipe(seed: int, greedy_share: float, temperature: float, reply_tokens: int) -> SynthesisRecipe:
    from dspark_cli.training.prompt_synthesis import SynthesisRecipe

    if not 0 <= greedy_share <= 1:
        raise UsageError(f"--greedy-share {greedy_share:g} is no share", "give a number from 0 to 1")
    if not 0 < temperature < math.inf:
        raise UsageError(f"--temperature {temperature:g} draws nothing", "give a number above 0, or --greedy-share 1")
    if reply_tokens < 2:
        raise UsageError(f"--reply-tokens {reply_tokens} leaves nothing to learn", "give 2 or more")
    return SynthesisRecipe(
        seed=seed, greedy_share=greedy_share, temperature=temperature, most_reply_tokens=reply_tokens, parallel=32
    )


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--taps {text} is no list of layers", "write one such as 5,13,20") from None


def _given(path: Path) -> list[str]:
    from dspark_cli.training.prompt_file import read_prompts
    from dspark_cli.training.training_run import FEWEST_SEQUENCES

    return read_prompts(path, fewest=FEWEST_SEQUENCES + 1)


def _features(
    pair: LoadedPair, folder: Path, shape: DrafterShape, recipe: SynthesisRecipe, tokens: int,
    texts: list[str] | None, console: Console,
) -> FeatureCache:  # fmt: skip
    from dspark_cli.engine.checkpoints.fingerprint import fingerprint
    from dspark_cli.training.feature_making import default_taps, make_features, open_features, room_for
    from dspark_cli.training.training_run import check_taps

    layers = pair.target.config.layers
    taps = shape.taps or default_taps(layers)
    check_taps(taps, layers)
    cache = open_features(folder / "features", fingerprint(pair.options.model), pair, taps, recipe)
    size, free = room_for(cache, tokens)
    console.say(
        f"{tokens} tokens of features take {size / 1e9:.2f} GB in {cache.folder}; {free / 1e9:.0f} GB are free."
    )
    make_features(
        cache, pair, recipe, tokens, texts, lambda made, wanted: console.passing(f"text: {made} of {wanted} tokens")
    )
    if cache.tokens < tokens:
        console.say(f"The prompts are used up after {cache.tokens} tokens.")
    return cache


def _target(pair: LoadedPair) -> TargetParts:
    from dspark_cli.engine.checkpoints.opening import open_checkpoint
    from dspark_cli.training.target_parts import read_target

    checkpoint = open_checkpoint(pair.options.model)
    return read_target(checkpoint.config, checkpoint.weights)


def _show(line: Progress | HeldOut, console: Console) -> None:
    from dspark_cli.training.trainer import Progress

    if isinstance(line, Progress):
        console.say(
            f"{line.anchors} drafts, {line.spent:.0%}: loss {line.loss:.3f}, distance {line.distance:.3f}, "
            f"{line.anchors_per_second:.0f} drafts a second"
        )
        return
    slots = " ".join(f"{chance:.2f}" for chance in line.acceptance)
    console.say(
        f"  held out: accepted length {line.accepted_length:.2f} drawn, {line.greedy_length:.2f} greedy; slots {slots}"
    )


def _write(trainer: Trainer, target: TargetParts, name: str, context_length: int, out: Path, full: bool) -> None:
    from dspark_cli.training.export import TargetNames, write_drafter

    config, tensors, draft_ids = trainer.finish()
    if full:
        head = target.head if draft_ids is None else target.head[draft_ids]
        tensors |= {"embed_tokens.weight": target.embedding, "lm_head.weight": head}
    record = {
        "made_with": f"dspark-cli {__version__}",
        "anchors": trainer.anchors,
        "minutes": round(trainer.seconds / 60, 1),
    }
    names = TargetNames(name, context_length=context_length)
    write_drafter(out, config, tensors, draft_ids, names, full=full, extra={"training": record})
