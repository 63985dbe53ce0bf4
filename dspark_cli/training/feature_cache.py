"""Target features on disk: what the drafter learns from, made once and read many times.

A folder of shards, each a safetensors file:

- ``ids`` int32 [N], all sequences one after the other, prompts included;
- ``starts`` int64 [S + 1], where each sequence begins in ``ids``, and N;
- ``reply_starts`` int32 [S], where in its sequence the reply begins;
- ``greedy`` uint8 [S], whether the reply is greedy;
- ``features`` float16 [N, T·H], the tapped outputs, the last tap being the final layer's output before the final
  norm. The last id of a reply was never read by the target: its row is zero and must not be used.

``index.json`` names them with their checksums, and the target that they came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dspark_cli.errors import DsparkError
from dspark_cli.paths import write_atomically
from dspark_cli.training.prompt_synthesis import Dialogue

FORMAT = 1
SHARD_TOKENS = 8192  # at 4 taps of width 576 and the last layer, about 50 MB


@dataclass(frozen=True)
class Origin:
    """What the features depend on; a cache of another origin must not be mixed in or trained on."""

    target: str
    taps: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    recipe: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """One file of the cache."""

    name: str
    sha256: str
    tokens: int
    sequences: int


@dataclass(frozen=True)
class ShardTensors:
    """The tensors of one shard, as named above."""

    ids: Tensor
    starts: Tensor
    reply_starts: Tensor
    greedy: Tensor
    features: Tensor


def bytes_per_token(taps: int, hidden_size: int) -> int:
    """Disk that one token takes, for ``taps`` tapped layers, the final one among them."""
    return taps * hidden_size * 2 + 4


class FeatureCache:
    """A folder of shards that can be added to and read.

    Raises:
        DsparkError: the folder holds a cache of another origin, or a damaged index.
    """

    def __init__(self, folder: Path, origin: Origin | None = None) -> None:
        self.folder = folder
        index = self._read_index()
        if index is None:
            if origin is None:
                raise DsparkError(f"there are no features in {folder}", "run dspark train without --features first")
            self.origin, self.shards, self.next_number = origin, list[Shard](), 0
            return
        self.origin, self.shards, self.next_number = index
        if origin is not None and _identity(origin) != _identity(self.origin):
            raise DsparkError(
                f"the features in {folder} were made with another target or other taps",
                "use another folder for the features, or delete this one",
            )

    def _read_index(self) -> tuple[Origin, list[Shard], int] | None:
        path = self.folder / "index.json"
        if not path.exists():
            return None
        try:
            index = json.loads(path.read_text("utf-8"))
            if index["format"] != FORMAT:
                raise ValueError(f"format {index['format']}")
            origin = Origin(**{**index["origin"], "taps": tuple(index["origin"]["taps"])})
            return origin, [Shard(**shard) for shard in index["shards"]], int(index["next_number"])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise DsparkError(
                f"{path} is damaged ({error})", "delete the folder of the features and start again"
            ) from error

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    def add(self, dialogues: list[Dialogue], next_number: int) -> None:
        """Write one shard; the index is replaced last, so that a kill leaves a whole cache.

        ``next_number`` is where the numbers of dialogues go on after a restart.
        """
        ids = torch.tensor([token for one in dialogues for token in one.ids], dtype=torch.int32)
        lengths = torch.tensor([0, *(len(one.ids) for one in dialogues)])
        features = torch.zeros((len(ids), dialogues[0].features.shape[1]), dtype=torch.float16)
        starts = lengths.cumsum(0)
        for start, one in zip(starts.tolist(), dialogues, strict=False):
            features[start : start + one.features.shape[0]] = one.features
        tensors = {
            "ids": ids,
            "starts": starts,
            "reply_starts": torch.tensor([one.reply_start for one in dialogues], dtype=torch.int32),
            "greedy": torch.tensor([one.greedy for one in dialogues], dtype=torch.uint8),
            "features": features,
        }
        content = save(tensors)
        name = f"shard-{len(self.shards):05d}.safetensors"
        write_atomically(self.folder / name, content)
        self.shards.append(Shard(name, hashlib.sha256(content).hexdigest(), len(ids), len(dialogues)))
        self.next_number = next_number
        self._write_index()

    def _write_index(self) -> None:
        index = {
            "format": FORMAT,
            "origin": asdict(self.origin),
            "next_number": self.next_number,
            "shards": [asdict(shard) for shard in self.shards],
        }
        write_atomically(self.folder / "index.json", json.dumps(index, indent=1).encode())

    def read(self, shard: Shard, *, check: bool = True) -> ShardTensors:
        """The tensors of ``shard``.

        Raises:
            DsparkError: the file is gone, or is not what was written.
        """
        path = self.folder / shard.name
        try:
            if check and hashlib.sha256(path.read_bytes()).hexdigest() != shard.sha256:
                raise ValueError("its checksum differs")
            return ShardTensors(**load_file(path))
        except (OSError, ValueError, SafetensorError, TypeError) as error:
            raise DsparkError(
                f"the features in {path} are damaged ({error})", "delete the folder of the features and start again"
            ) from error

    def __iter__(self) -> Iterator[ShardTensors]:
        return (self.read(shard) for shard in self.shards)


def _identity(origin: Origin) -> tuple[object, ...]:
    return origin.target, origin.taps, origin.hidden_size, origin.vocab_size
