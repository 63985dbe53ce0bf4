"""The heads against the formulas of the paper, written out number by number in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from dspark_cli.engine.drafters.confidence_head import calibrated, open_confidence_head
from dspark_cli.engine.drafters.markov_head import open_markov_head
from dspark_cli.engine.model_config import DrafterConfig, LayerShape, RopeConfig
from dspark_cli.errors import CheckpointError
from tests.fakes.memory_weights import MemoryWeights

SHAPES = [(1, 1, 2), (3, 5, 7), (16, 63, 123)]  # rank, hidden, vocabulary


def _config(head, rank, hidden, vocab, confidence=False, with_markov=False):
    layer = LayerShape(hidden, 8, 1, 1, 8, 1e-6, RopeConfig())
    return DrafterConfig(layer, 1, 7, 0, (0,), 2, vocab, vocab, head, rank, confidence, with_markov)


def _markov_tensors(head, rank, hidden, vocab):
    tensors = {"markov_w1.weight": (vocab, rank), "markov_w2.weight": (vocab, rank)}
    if head == "gated":
        tensors |= {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)}
    if head == "rnn":
        tensors |= {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)}
    return {f"markov_head.{name}": torch.randn(shape) for name, shape in tensors.items()}


def _dot(row, column):
    return sum(a * b for a, b in zip(row, column, strict=True))


def _linear(matrix, vector, bias=None):
    return [_dot(row, vector) + (bias[i] if bias else 0.0) for i, row in enumerate(matrix)]


def _sigma(x):
    return 1 / (1 + math.exp(-x))


def _naive(head, tensors, previous, hidden):
    """Biases of a whole block: ``previous`` is the token before each slot, ``hidden`` its row."""
    weights = {name.removeprefix("markov_head."): tensor.tolist() for name, tensor in tensors.items()}
    rank = len(weights["markov_w1.weight"][0])
    state, biases = [0.0] * rank, []
    for token, h in zip(previous, hidden.tolist(), strict=True):
        e = weights["markov_w1.weight"][token]
        if head == "vanilla":
            inner = e
        elif head == "gated":
            opened = _linear(weights["gate_proj.weight"], h + e, weights["gate_proj.bias"])
            inner = [_sigma(x) * y for x, y in zip(opened, e, strict=True)]
        else:
            z = _linear(weights["joint_proj.weight"], state + e + h, weights["joint_proj.bias"])
            g, c, o = z[:rank], z[rank : 2 * rank], z[2 * rank :]
            state = [_sigma(g[i]) * state[i] + (1 - _sigma(g[i])) * math.tanh(c[i]) for i in range(rank)]
            inner = [math.tanh(x) for x in o]
        biases.append(_linear(weights["markov_w2.weight"], inner))
    return biases


@pytest.mark.parametrize(("rank", "hidden", "vocab"), SHAPES)
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_markov_head_follows_its_formula(kind, rank, hidden, vocab):
    tensors = _markov_tensors(kind, rank, hidden, vocab)
    head = open_markov_head(_config(kind, rank, hidden, vocab), MemoryWeights(tensors), "cpu", torch.float32)
    assert head is not None
    previous, rows = torch.randint(vocab, (7,)).tolist(), torch.randn(7, hidden)
    expected = _naive(kind, tensors, previous, rows)
    for _ in range(2):  # the second block must not remember the first
        state = head.first_state()
        for slot, token in enumerate(previous):
            logits = torch.randn(vocab)
            before = logits.clone()
            biased, embedding, state = head.add(logits, token, rows[slot], state)
            assert torch.equal(logits, before)
            torch.testing.assert_close(biased, before + torch.tensor(expected[slot]), atol=2e-5, rtol=2e-5)
            assert torch.equal(embedding, tensors["markov_head.markov_w1.weight"][token])


def test_rank_0_has_no_head():
    config = _config("none", 0, 5, 7)
    assert open_markov_head(config, MemoryWeights({}), "cpu", torch.float32) is None


def test_damaged_heads_are_refused_in_a_sentence():
    tensors = _markov_tensors("gated", 3, 5, 7)
    config = _config("gated", 3, 5, 7)
    wrong = tensors | {"markov_head.gate_proj.weight": torch.zeros(3, 9)}
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight.*\[3, 9\].*\[3, 8\]"):
        open_markov_head(config, MemoryWeights(wrong), "cpu", torch.float32)
    del tensors["markov_head.gate_proj.bias"]
    with pytest.raises(CheckpointError, match=r"no tensor 'markov_head\.gate_proj\.bias'"):
        open_markov_head(config, MemoryWeights(tensors), "cpu", torch.float32)
    with pytest.raises(CheckpointError, match="unknown kind 'tower'"):
        open_markov_head(_config("tower", 3, 5, 7), MemoryWeights(tensors), "cpu", torch.float32)


@pytest.mark.parametrize(("rank", "hidden", "vocab"), SHAPES)
@pytest.mark.parametrize("with_markov", [False, True])
def test_confidence_head_follows_its_formula(with_markov, rank, hidden, vocab):
    width = hidden + rank * with_markov
    weight, bias = torch.randn(1, width), torch.randn(1)
    tensors = {"confidence_head.proj.weight": weight, "confidence_head.proj.bias": bias}
    config = _config("vanilla", rank, hidden, vocab, True, with_markov)
    head = open_confidence_head(config, MemoryWeights(tensors), "cpu", torch.float32)
    assert head is not None
    rows, embeddings = torch.randn(4, hidden), torch.randn(4, rank)
    got = head.logits(rows, embeddings).tolist()
    for slot in range(4):
        read = rows[slot].tolist() + (embeddings[slot].tolist() if with_markov else [])
        assert got[slot] == pytest.approx(_dot(weight[0].tolist(), read) + bias.item(), abs=2e-5)


def test_confidence_head_absent_or_impossible():
    assert open_confidence_head(_config("vanilla", 3, 5, 7), MemoryWeights({}), "cpu", torch.float32) is None
    with pytest.raises(CheckpointError, match="no Markov head"):
        open_confidence_head(_config("none", 0, 5, 7, True, True), MemoryWeights({}), "cpu", torch.float32)


def test_calibration_divides_each_slot_by_its_own_temperature():
    logits = (2.0, -3.0, 0.0, 800.0, -800.0)
    plain = calibrated(logits, None)
    assert plain == pytest.approx([_sigma(2.0), _sigma(-3.0), 0.5, 1.0, 0.0])
    assert calibrated(logits, (1.0,) * 7) == plain
    assert calibrated((2.0, -3.0), (0.5, 3.0, 9.0)) == pytest.approx([_sigma(4.0), _sigma(-1.0)])
