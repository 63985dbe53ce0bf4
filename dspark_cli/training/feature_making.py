"""Fills a feature cache, a shard at a time, so that a kill costs at most the shard in the making.

A shard is made from a fresh start: its replies depend on the recipe and on where its prompts begin, on nothing that
was made before in the same process. So the cache of a run that was killed and resumed is the cache of one that ran
through, to the byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path

from dspark_cli.engine.loading import LoadedPair
from dspark_cli.errors import DsparkError
from dspark_cli.training.feature_cache import FeatureCache, Origin, bytes_per_token
from dspark_cli.training.prompt_synthesis import Dialogue, Synthesiser, SynthesisRecipe

_SHARD_TOKENS = 32768  # at 5 taps of width 576 and the last layer, about 230 MB
_NUMBERS_A_SHARD = 1 << 20
_SPARE = 1 << 28  # what a disk must have left over

Tell = Callable[[int, int], None]


def default_taps(layers: int) -> tuple[int, ...]:
    """Five taps of a target with so many layers, the later ones closer together; the final layer is none."""
    at = (round(share * (layers - 1)) for share in (0.17, 0.45, 0.68, 0.85, 0.95))
    return tuple(sorted({min(tap, layers - 2) for tap in at}))


def open_features(
    folder: Path, identity: str, pair: LoadedPair, taps: tuple[int, ...], recipe: SynthesisRecipe
) -> FeatureCache:
    """The cache in ``folder``, new or begun before; ``identity`` tells the target from any other.

    Raises:
        DsparkError: the cache there is of another target, other taps or another recipe.
    """
    config = pair.target.config
    origin = Origin(
        identity, (*taps, config.layers - 1), config.layer.hidden_size, config.vocab_size, asdict(recipe)
    )  # fmt: skip
    cache = FeatureCache(folder, origin)
    if cache.origin.recipe != origin.recipe:
        raise DsparkError(
            f"the features in {folder} were made with another seed or other options", "use another folder, or delete it"
        )
    return cache


def remove_parts(folder: Path) -> None:
    """Remove what writing anywhere below ``folder`` left unfinished when it was killed."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def room_for(cache: FeatureCache, tokens: int) -> tuple[int, int]:
    """Bytes that so many tokens will take in all, and bytes that the disk has free for more of them.

    Raises:
        DsparkError: they do not fit.
    """
    each = bytes_per_token(len(cache.origin.taps), cache.origin.hidden_size)
    place = next(folder for folder in (cache.folder, *cache.folder.parents) if folder.exists())
    needed, free = each * max(0, tokens - cache.tokens), shutil.disk_usage(place).free
    if needed + _SPARE > free:
        raise DsparkError(
            f"the features need {needed / 1e9:.1f} GB more in {cache.folder} and {free / 1e9:.1f} GB are free",
            "make room, train on fewer tokens or give another --work folder",
        )
    return each * tokens, free


def make_features(
    cache: FeatureCache, pair: LoadedPair, recipe: SynthesisRecipe, tokens: int, prompts: Seq[str] | None, tell: Tell
) -> None:
    """Add shards until ``cache`` holds ``tokens`` or the ``prompts`` are used up; None lets the target write them.

    ``tell(made, wanted)`` counts tokens.

    Raises:
        DsparkError: the target writes no usable prompts, or the disk is full.
    """
    while cache.tokens < tokens:
        wanted = min(_SHARD_TOKENS, tokens - cache.tokens)
        first = cache.next_number
        if prompts is not None:
            supply = _Supply(iter(prompts[first:]))
        else:
            supply = _Supply(Synthesiser(pair, recipe, (), first).questions())
        writer = Synthesiser(pair, recipe, cache.origin.taps, first)
        found: list[Dialogue] = []
        made = 0
        for one in writer.dialogues(supply):
            found.append(one)
            made += len(one.ids)
            supply.closed = made >= wanted
            tell(cache.tokens + made, tokens)
        if not found:
            return
        try:
            cache.add(found, first + supply.taken if prompts is not None else first + _NUMBERS_A_SHARD)
        except OSError as error:
            raise DsparkError(
                f"no features can be written to {cache.folder} ({error.strerror})", "make room"
            ) from error


class _Supply:
    """Prompts, counted, until it is closed."""

    def __init__(self, prompts: Iterator[str]) -> None:
        self._prompts = prompts
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.closed:
            raise StopIteration
        text = next(self._prompts)
        self.taken += 1
        return text
