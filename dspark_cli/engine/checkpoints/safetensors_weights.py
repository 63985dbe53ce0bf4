"""Tensors of a folder's safetensors files, checked when opened and read when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark_cli.engine.checkpoints.fields import read_json_object
from dspark_cli.errors import CheckpointError

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_DTYPES: Final = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}


class SafetensorsWeights:
    """A weight source over one or many safetensors files, memory-mapped. float32 tensors are not copied."""

    def __init__(self, files: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """``files`` maps each tensor's name to its open file, ``names`` to the name it has in there."""
        self._files = files
        self._names = names
        self.metadata: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        for name, file in files.items():
            part = file.get_slice(names[name])
            self.shapes[name] = tuple(part.get_shape())
            self._dtypes[name] = part.get_dtype()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in float32, in its stored shape. Do not write to it."""
        tensor: Tensor = self._files[name].get_tensor(self._names[name])
        return tensor.to(torch.float32)

    def integers(self, name: str) -> Tensor:
        """A tensor of integers as int64.

        Raises:
            CheckpointError: it is of another type.
        """
        if self._dtypes[name] not in ("I64", "I32"):
            raise CheckpointError(
                f"the tensor {name} is stored as {self._dtypes[name]}, and integers are needed", "download it again"
            )
        tensor: Tensor = self._files[name].get_tensor(self._names[name])
        return tensor.to(torch.int64)

    @property
    def weights_format(self) -> str:
        """The type that takes most of the values: ``f32``, ``bf16``, ``f16``."""
        sizes: Counter[str] = Counter()
        for name, dtype in self._dtypes.items():
            sizes[dtype] += prod(self.shapes[name])
        dtype = sizes.most_common(1)[0][0]
        return _DTYPES.get(dtype, dtype.lower())

    def only(self, names: Iterable[str]) -> SafetensorsWeights:
        """The same source without all other tensors."""
        return SafetensorsWeights({name: self._files[name] for name in names}, self._names)

    def check_dtypes(self, path: Path) -> None:
        """Raise CheckpointError if a tensor is of a type that is not read (integers, float8)."""
        for name, dtype in self._dtypes.items():
            if dtype not in _DTYPES:
                raise CheckpointError(
                    f"{path} stores the tensor {name} as {dtype}, and f32, f16 and bf16 are read",
                    "use the unquantized folder or a quantized .gguf file of the model",
                )


def open_safetensors(folder: Path, renamed: Mapping[str, str] | None = None) -> SafetensorsWeights:
    """Find and open the safetensors files of ``folder``; a prefix in ``renamed`` is replaced by its value.

    Raises:
        CheckpointError: there are none, one is missing, cut short or damaged, or the index does not fit them.
    """
    files: dict[str, Any] = {}
    for path, wanted in _listed(folder).items():
        file = _open(path)
        held = set(file.keys())
        absent = [name for name in wanted or () if name not in held]
        if absent:
            raise CheckpointError(
                f"{folder / _INDEX} places the tensor {absent[0]} in {path.name}, which lacks it",
                "download the model again",
            )
        files |= dict.fromkeys(wanted or held, file)
    names = {_rename(name, renamed or {}): name for name in files}
    return SafetensorsWeights({new: files[old] for new, old in names.items()}, names)


def open_file(path: Path) -> SafetensorsWeights:
    """Open one safetensors file with all its tensors.

    Raises:
        CheckpointError: it is missing, cut short or damaged.
    """
    file = _open(path)
    names = list(file.keys())
    weights = SafetensorsWeights(dict.fromkeys(names, file), {name: name for name in names})
    weights.metadata = dict(file.metadata() or {})
    return weights


def _rename(name: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _listed(folder: Path) -> dict[Path, list[str] | None]:
    """The files to open, each with the tensors that the index places there (None: all that it holds)."""
    if (folder / _SINGLE).exists():
        return {folder / _SINGLE: None}
    if (folder / _INDEX).exists():
        return _indexed(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise CheckpointError(
            f"{folder} has {len(found)} safetensors files and no {_INDEX}", "download the whole model again"
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise CheckpointError(
            f"{folder} has its weights in PyTorch's pickle format only, which is not read as it can run code",
            "use a version of the model in .safetensors or .gguf",
        )
    raise CheckpointError(f"{folder} has no weights (no .safetensors file)", "download the whole model again")


def _indexed(folder: Path) -> dict[Path, list[str] | None]:
    placed = read_json_object(folder / _INDEX).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map", "download it again")
    shards: dict[Path, list[str] | None] = {}
    for name, file in placed.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{folder / _INDEX} names the file {file!r}", "download it again")
        names = shards.setdefault(folder / file, [])
        if names is not None:
            names.append(name)
    for path in shards:
        if not path.exists():
            raise CheckpointError(
                f"{folder / _INDEX} names {path.name}, which is not there", "download the missing file"
            )
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or damaged ({error})", "download it again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})", "check that it is a readable file") from error
