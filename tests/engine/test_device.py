from __future__ import annotations

import pytest
import torch

from dspark_cli.engine.device import choose_device
from dspark_cli.errors import UsageError


def _cards(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_the_cpu_computes_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _cards(monkeypatch)
    chosen = choose_device(name)
    assert (chosen.torch_device, chosen.dtype, chosen.dtype_name) == (torch.device("cpu"), torch.float32, "float32")
    assert chosen.name == "cpu"


def test_a_card_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _cards(monkeypatch, (9, 0), (7, 5))
    assert choose_device("cpu").torch_device.type == "cpu"
    for name, index, dtype in (
        ("auto", 0, torch.bfloat16),
        ("cuda", 0, torch.bfloat16),
        ("cuda:0", 0, torch.bfloat16),
        ("cuda:1", 1, torch.float16),
    ):
        chosen = choose_device(name)
        assert (chosen.torch_device, chosen.dtype) == (torch.device("cuda", index), dtype)


@pytest.mark.parametrize("name", ["gpu", "cpu:0", "cuda:x", "cuda:-1", "auto:1", ""])
def test_refuses_unknown_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _cards(monkeypatch, (9, 0))
    with pytest.raises(UsageError, match="is not a device: use auto, cpu, cuda or cuda:N"):
        choose_device(name)


def test_refuses_a_card_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _cards(monkeypatch)
    with pytest.raises(UsageError, match="needs an NVIDIA card"):
        choose_device("cuda")
    _cards(monkeypatch, (9, 0))
    with pytest.raises(UsageError, match="this machine has 1 cards"):
        choose_device("cuda:1")
