"""Keep the dequantized weights of a GGUF file on disk, so that the next start need not dequantize them.

Measured with SmolLM2-135M in Q4_1 (538 MB as float32), one thread: dequantizing takes 0.4 s on a machine at rest, the
library for it 0.3 s more, and up to 2 s in all on a busy one; reading the memory-mapped cache and comparing its
checksums takes 0.3 s. A file that the system no longer holds in memory must come from the disk
(0.5 s here), so large models would gain nothing and are left out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint
from dspark_cli.engine.checkpoints.safetensors_weights import SafetensorsWeights, open_file
from dspark_cli.engine.checkpoints.tensor_shapes import target_shapes
from dspark_cli.engine.model_config import WeightSource
from dspark_cli.errors import CheckpointError
from dspark_cli.paths import cache_dir, replacing

# Raise it when tensors of the same GGUF file would come out with other values, names or row order.
_VERSION: Final = 2
_SUMS: Final = "crc32"
_LARGEST: Final = 2 << 30
_SPARE_DISK: Final = 1 << 30
_UNPACKED: Final = ("F32", "F16", "BF16")
_ABANDONED_AFTER_S: Final = 3600


class CachedWeights:
    """The cached tensors of ``source``, each compared with its checksum when read.

    Where one differs the source is read instead and the cache is removed, so that the next start makes it again.
    """

    def __init__(
        self, weights: SafetensorsWeights, sums: Mapping[str, int], source: WeightSource, damaged: Callable[[], None]
    ) -> None:
        self._weights: WeightSource = weights
        self._sums = sums
        self._source = source
        self._damaged = damaged

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in float32, not copied. Do not write to it."""
        tensor = self._weights.tensor(name)
        if self._weights is not self._source and _checksum(tensor) != self._sums[name]:
            self._weights = self._source
            self._damaged()
            return self._source.tensor(name)
        return tensor

    @property
    def weights_format(self) -> str:
        """The ggml type of the source, such as ``Q4_1``."""
        return self._source.weights_format


def with_weight_cache(checkpoint: Checkpoint, say: Callable[[str], None], enabled: bool = True) -> Checkpoint:
    """The same checkpoint, its weights from the cache where there is one; else the cache is made now.

    Checkpoints that gain nothing (folders, unquantized files, over 2 GiB as float32) come back unchanged.
    ``say`` is told in one sentence when a cache is made, with its size and place, and when it could not be.
    A cache belongs to the path, size and time of change of its source; earlier ones of the same path are removed.
    """
    if not enabled or checkpoint.kind != "gguf" or checkpoint.weights_format in _UNPACKED:
        return checkpoint
    size = 4 * sum(prod(shape) for shape in target_shapes(checkpoint.config).values())
    if size > _LARGEST:
        return checkpoint
    try:
        path = cache_path(checkpoint.path)
        weights = _read(path, checkpoint, say)
        if weights is None:
            _make_room(path, size)
            _write(path, checkpoint.weights, checkpoint)
            weights = _read(path, checkpoint, say)
            say(f"the unpacked weights are kept in {path} ({size / 1e6:.0f} MB), so that the next start is quicker")
    except OSError as error:
        say(f"the unpacked weights are not kept for the next start ({error.strerror or error})")
        return checkpoint
    return checkpoint if weights is None else replace(checkpoint, weights=weights)


def cache_path(source: Path) -> Path:
    """Where the cache of the GGUF file ``source``, as it is now, stands or would stand.

    Raises:
        OSError: the source is gone.
    """
    status = source.stat()
    state = f"{_VERSION} {status.st_size} {status.st_mtime_ns}"
    place, content = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (str(source.resolve()), state))
    return cache_dir() / "weights" / f"{place}-{content}.safetensors"


def _read(path: Path, checkpoint: Checkpoint, say: Callable[[str], None]) -> WeightSource | None:
    """The cache at ``path``; None if it is not there, torn, or not what ``checkpoint`` calls for."""
    if not path.exists():
        return None
    try:
        weights = open_file(path)
    except CheckpointError:
        return None
    if weights.shapes != target_shapes(checkpoint.config) or weights.weights_format != "f32":
        return None
    sums = weights.metadata.get(_SUMS, "").split()
    if len(sums) != len(weights.shapes):
        return None

    def damaged() -> None:
        path.unlink(missing_ok=True)
        say(f"the unpacked weights in {path} were damaged and are removed; the model's own file is read instead")

    known = dict(zip(target_shapes(checkpoint.config), (int(text, 16) for text in sums), strict=True))
    return CachedWeights(weights, known, checkpoint.weights, damaged)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.contiguous().numpy().data.cast("B"))


def _make_room(path: Path, size: int) -> None:
    """Remove what the cache at ``path`` replaces; OSError where the disk would get too full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.name.partition("-")[0]
    for old in path.parent.glob(f"{place}-*.safetensors"):
        old.unlink(missing_ok=True)
    for part in path.parent.glob(f".{place}-*.part"):
        # A killed process left it; a younger one may still be written.
        if time.time() - part.stat().st_mtime > _ABANDONED_AFTER_S:
            part.unlink(missing_ok=True)
    if shutil.disk_usage(path.parent).free < size + _SPARE_DISK:
        raise OSError(f"too little room on the disk for {size / 1e6:.0f} MB in {path.parent}")


def _write(path: Path, weights: WeightSource, checkpoint: Checkpoint) -> None:
    """Write all tensors as a safetensors file, one at a time, so that memory holds only one."""
    shapes = target_shapes(checkpoint.config)
    sums = dict.fromkeys(shapes, 0)
    # A file that a power cut left short fails the length check of the next start and is made again.
    with replacing(path, durable=False) as temporary, open(temporary, "wb") as file:
        file.write(_header(shapes, sums))
        for name in shapes:
            tensor = weights.tensor(name).contiguous()
            sums[name] = _checksum(tensor)
            file.write(tensor.numpy().data)
        file.seek(0)
        file.write(_header(shapes, sums))


def _header(shapes: Mapping[str, tuple[int, ...]], sums: Mapping[str, int]) -> bytes:
    """The beginning of the safetensors file; of the same length whatever the checksums."""
    header: dict[str, Any] = {"__metadata__": {_SUMS: " ".join(f"{value:08x}" for value in sums.values())}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
