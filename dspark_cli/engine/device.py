"""Where the models run and in which arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dspark_cli.errors import UsageError

NAMES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Device:
    """A device and the dtype of weights, caches and activations there; chosen once and passed in."""

    torch_device: torch.device
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """For people: ``cpu``, or the model of the card."""
        if self.torch_device.type == "cuda":
            return torch.cuda.get_device_name(self.torch_device)
        return str(self.torch_device)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def choose_device(name: str = "auto") -> Device:
    """The device called ``name``: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` for a card where there is one.

    The CPU computes in float32, where the packed linear maps are exact at every width. A card computes in bfloat16
    where it has the units for it, else in float16.

    Raises:
        UsageError: no such device is known, or this machine or build of torch has none.
    """
    kind, _, number = name.partition(":")
    if kind not in NAMES or (number and not (kind == "cuda" and number.isdecimal())):
        raise UsageError(f"--device {name!r} is not a device", "use auto, cpu, cuda or cuda:N")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return Device(torch.device("cpu"), torch.float32)
    if not torch.cuda.is_available():
        raise UsageError(f"--device {name} needs an NVIDIA card and a CUDA build of torch", "use --device cpu")
    index = int(number or 0)
    if index >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: this machine has {torch.cuda.device_count()} cards", "numbers begin at 0")
    capable = torch.cuda.get_device_capability(index) >= (8, 0)
    return Device(torch.device("cuda", index), torch.bfloat16 if capable else torch.float16)
