"""Read a GGUF file's header, key-values and tensor table; the tensors' bytes stay on disk, memory-mapped.

Layout (little endian, versions 2 and 3): magic ``GGUF``, u32 version, u64 tensors, u64 key-values; then the
key-values (string key, u32 type, value), then for each tensor name, u32 dimensions, u64 sizes (fastest first),
u32 type, u64 offset from the data's start, which is the end of the table rounded up to ``general.alignment``.
A string is u64 length and UTF-8 bytes; an array is u32 element type, u64 count and the elements.
Written here because importing and running the reader of the ``gguf`` library takes seconds.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dspark_cli.errors import CheckpointError

_MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final[dict[int, str]] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True)
class QuantType:
    """A ggml storage type: ``block`` values are stored in ``size`` bytes."""

    code: int
    name: str
    block: int
    size: int


QUANT_TYPES: Final[dict[int, QuantType]] = {
    kind.code: kind
    for kind in (
        QuantType(0, "F32", 1, 4),
        QuantType(1, "F16", 1, 2),
        QuantType(30, "BF16", 1, 2),
        QuantType(8, "Q8_0", 32, 34),
        QuantType(2, "Q4_0", 32, 18),
        QuantType(3, "Q4_1", 32, 20),
        QuantType(6, "Q5_0", 32, 22),
        QuantType(7, "Q5_1", 32, 24),
        QuantType(12, "Q4_K", 256, 144),
        QuantType(13, "Q5_K", 256, 176),
        QuantType(14, "Q6_K", 256, 210),
    )
}


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor table. ``shape`` is in numpy's order (slowest first), ``start`` a file offset."""

    name: str
    kind: QuantType
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.kind.block * self.kind.size


@dataclass(frozen=True)
class GgufContainer:
    """A checked GGUF file: every tensor of ``tensors`` lies wholly inside it."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data: mmap.mmap

    def raw(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, uint8 [product of all but the last of shape, bytes a row], not copied."""
        rows = math.prod(info.shape[:-1])
        return np.frombuffer(self.data, np.uint8, info.size, info.start).reshape(rows, -1)


class _Cursor:
    """Reads values one after the other and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)

    def number(self, form: str) -> Any:
        reader = struct.Struct(form)
        (value,) = reader.unpack_from(self.data, self.position)
        self.position += reader.size
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        # The vocabulary and merges pass here: some 10^5 strings, so everything is local.
        data, position, end, unpack = self.data, self.position, self.end, struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > end:
                raise EOFError
            found.append(data[start:position].decode("utf-8"))
        self.position = position
        return found

    def numbers(self, form: str, count: int) -> npt.NDArray[Any]:
        size = np.dtype(form).itemsize * count
        if size > self.end - self.position:
            raise EOFError
        values: npt.NDArray[Any] = np.frombuffer(self.data, form, count, self.position).copy()
        self.position += size
        return values

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            if depth > 2:
                raise ValueError("arrays nested too deeply")
            element, count = self.number("<I"), self.number("<Q")
            if element == _STRING:
                return self.strings(count)
            if element in _NUMBERS:
                return self.numbers(_NUMBERS[element], count)
            return [self.value(element, depth + 1) for _ in range(count)]
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind], 1)[0].item()
        raise ValueError(f"a value of unknown type {kind}")


def read_container(path: Path) -> GgufContainer:
    """Read everything but the tensors' bytes of the file at ``path``.

    Raises:
        CheckpointError: the file is missing, is no GGUF file, is cut short or damaged, is big endian, of version 1
            or of a later one, one part of several, or holds tensors of a type that is not read here.
    """
    data = _map(path)
    cursor = _Cursor(data)
    try:
        tensors, pairs = _header(cursor, path)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("<I"))
        _refuse_parts(metadata, path)
        table = _table(cursor, tensors, metadata, path)
    except (EOFError, struct.error) as error:
        raise _cut_short(path) from error
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error})", "download it again") from error
    return GgufContainer(path, metadata, table, data)


def _map(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
            if magic != _MAGIC:
                if _MAGIC.startswith(magic):
                    raise _cut_short(path)
                raise CheckpointError(f"{path} is not a GGUF file", "give a .gguf file")
            # A private writable mapping costs the same and spares torch's warning about read-only memory.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}", "check the path") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})", "check that it is a readable file") from error


def _cut_short(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is cut short or damaged", "download it again")


def _header(cursor: _Cursor, path: Path) -> tuple[int, int]:
    """Check magic and version; return the number of tensors and of key-values."""
    cursor.position = len(_MAGIC)
    version = cursor.number("<I")
    if version and version & 0xFFFF == 0:
        raise CheckpointError(f"{path} is a big-endian GGUF file", "use the little-endian file of the model")
    if version not in (2, 3):
        way_out = "convert the model again with a current llama.cpp" if version < 2 else "use a file of version 3"
        raise CheckpointError(f"{path} is a GGUF file of version {version}, and versions 2 and 3 are read", way_out)
    return cursor.number("<Q"), cursor.number("<Q")


def _refuse_parts(metadata: dict[str, Any], path: Path) -> None:
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise CheckpointError(
            f"{path} is one part of {parts}", "join them with llama-gguf-split --merge and give the joined file"
        )


def _table(cursor: _Cursor, count: int, metadata: dict[str, Any], path: Path) -> dict[str, TensorInfo]:
    entries: list[tuple[str, QuantType, tuple[int, ...], int]] = []
    for _ in range(count):
        name, dimensions = cursor.string(), cursor.number("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        sizes = tuple(int(size) for size in cursor.numbers("<u8", dimensions))
        entries.append((name, _quant_type(cursor.number("<I"), name, path), sizes[::-1], cursor.number("<Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"an alignment of {alignment}")
    start = -(-cursor.position // alignment) * alignment
    table: dict[str, TensorInfo] = {}
    for name, kind, shape, offset in entries:
        info = TensorInfo(name, kind, shape, start + offset)
        if name in table:
            raise ValueError(f"two tensors {name}")
        if 0 in shape or shape[-1] % kind.block:
            raise ValueError(f"tensor {name} of shape {list(shape)} cannot be of type {kind.name}")
        if info.start + info.size > cursor.end:
            raise EOFError
        table[name] = info
    return table


def _quant_type(code: int, tensor: str, path: Path) -> QuantType:
    if code in QUANT_TYPES:
        return QUANT_TYPES[code]
    from gguf import GGMLQuantizationType

    known = code in set(GGMLQuantizationType)
    name = GGMLQuantizationType(code).name if known else f"with the unknown number {code}"
    readable = ", ".join(kind.name for kind in QUANT_TYPES.values())
    raise CheckpointError(
        f"{path} stores tensor {tensor} in type {name}, which is not read here", f"use a file of {readable}"
    )
