"""Rounding to float16: matrices once, vectors never, nothing silently infinite."""

from __future__ import annotations

import pytest
import torch

from dspark_cli.engine.checkpoints.half_weights import HalfWeights
from dspark_cli.errors import CheckpointError
from tests.fakes.memory_weights import MemoryWeights


def test_matrices_are_rounded_and_vectors_are_not() -> None:
    values = torch.tensor([1.0, 1.0 + 2**-12, 0.1])
    half = HalfWeights(MemoryWeights({"m": values[None], "v": values}))
    assert torch.equal(half.tensor("m"), torch.tensor([[1.0, 1.0, 0.0999755859375]]))
    assert torch.equal(half.tensor("v"), values)
    assert "m" in half
    assert "x" not in half
    assert half.weights_format.endswith("as float16")


def test_a_value_beyond_float16_is_an_error_that_names_the_tensor() -> None:
    half = HalfWeights(MemoryWeights({"m": torch.full((2, 2), 1e6)}))
    with pytest.raises(CheckpointError, match=r"'m'.*onednn"):
        half.tensor("m")
