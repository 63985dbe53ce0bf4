"""The pieces of a decoder layer; whole layers are compared with transformers in targets/test_torch_target.py."""

from __future__ import annotations

import pytest
import torch
from dspark_kernels import ONEDNN, REFERENCE, KernelSet
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dspark_cli.engine.layers import DecoderLayer, RotaryTable
from dspark_cli.engine.model_config import LayerShape, RopeConfig
from dspark_cli.errors import CheckpointError
from tests.fakes.memory_weights import MemoryWeights

SHAPE = LayerShape(
    hidden_size=20, intermediate_size=28, heads=6, kv_heads=2, head_dim=8, norm_eps=1e-6, rope=RopeConfig(),
    qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
ROPES = [
    (RopeConfig(theta=10000.0), {"rope_type": "default", "rope_theta": 10000.0}),
    (RopeConfig(theta=500.0, kind="linear", factor=3.0), {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}),
    (
        RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 512),
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ),
]


def _tensors(shape: LayerShape, prefix: str = "layers.0.") -> dict[str, torch.Tensor]:
    hidden, inner, dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
    q, kv = shape.heads * dim, shape.kv_heads * dim
    linears = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    norms = {
        "input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_norm": dim, "self_attn.k_norm": dim
    }  # fmt: skip
    tensors = {f"{prefix}{name}.weight": torch.randn(size) for name, size in linears.items()}
    tensors |= {f"{prefix}{name}.bias": torch.randn(size[0]) for name, size in linears.items()}
    return tensors | {f"{prefix}{name}.weight": torch.rand(size) + 0.5 for name, size in norms.items()}


def _layer(tensors: dict[str, torch.Tensor], kernels: KernelSet = ONEDNN, **options: bool) -> DecoderLayer:
    return DecoderLayer(SHAPE, MemoryWeights(tensors), "layers.0.", kernels, **options)


@pytest.mark.parametrize(("rope", "parameters"), ROPES, ids=["default", "linear", "llama3"])
@pytest.mark.parametrize("head_dim", [16, 128])
def test_rotations_are_those_of_transformers(rope: RopeConfig, parameters: dict[str, object], head_dim: int) -> None:
    config = LlamaConfig(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=4096)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(1500).unsqueeze(0))
    rotation = RotaryTable(rope, head_dim).span(0, 1500).squeeze(1)
    torch.testing.assert_close(rotation.real, cos[0, :, : head_dim // 2], rtol=0, atol=2e-7)
    torch.testing.assert_close(rotation.imag, sin[0, :, : head_dim // 2], rtol=0, atol=2e-7)


def test_a_rotation_is_the_same_however_it_is_asked_for() -> None:
    whole = RotaryTable(RopeConfig(), 16).span(0, 1000)
    table = RotaryTable(RopeConfig(), 16)
    assert torch.equal(table.span(3, 5), whole[3:5])
    assert torch.equal(table.at([999, 0, 7]), whole[[999, 0, 7]])
    assert torch.equal(table.span(998, 1000), whole[998:])


def test_frequency_factors_divide_the_frequencies() -> None:
    factors = (1.0, 1.5, 4.0, 8.0)
    rotation = RotaryTable(RopeConfig(theta=100.0, kind="factors", factors=factors), 8).span(0, 20).squeeze(1)
    angles = torch.arange(20.0).outer(100.0 ** (-torch.arange(4) / 4) / torch.tensor(factors))
    torch.testing.assert_close(rotation, torch.polar(torch.ones_like(angles), angles))


def test_refuses_an_unknown_rope_scaling() -> None:
    with pytest.raises(CheckpointError, match="unknown rope scaling 'yarn'"):
        RotaryTable(RopeConfig(kind="yarn"), 16)


@pytest.mark.parametrize("kernels", [REFERENCE, ONEDNN], ids=lambda kernels: kernels.name)
def test_query_key_and_value_follow_the_half_split_definition(kernels: KernelSet) -> None:
    tensors, x, positions = _tensors(SHAPE), torch.randn(5, 20), [0, 1, 2, 9, 40]
    table = RotaryTable(SHAPE.rope, 8)
    q, k, v = _layer(tensors, kernels).qkv(x, table.at(positions))
    expected = [
        _half_split(tensors, name, _norm(x, tensors["layers.0.input_layernorm.weight"]), positions) for name in "qkv"
    ]
    assert (q.shape, k.shape, v.shape) == ((5, 6, 8), (5, 2, 8), (5, 2, 8))
    torch.testing.assert_close(v, expected[2])
    # The order inside a head is the layer's own business: only products of queries and keys are defined.
    keys = k.repeat_interleave(3, dim=1)
    expected_keys = expected[1].repeat_interleave(3, dim=1)
    for shift in range(5):
        products, wanted = (a * b.roll(shift, 0) for a, b in ((q, keys), (expected[0], expected_keys)))
        torch.testing.assert_close(products.sum(-1), wanted.sum(-1), rtol=1e-4, atol=1e-4)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + SHAPE.norm_eps).sqrt() * weight


def _half_split(tensors: dict[str, torch.Tensor], name: str, x: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Projection ``name`` of ``x``, with norm and rotation, from the definition."""
    weight, bias = (tensors[f"layers.0.self_attn.{name}_proj.{kind}"] for kind in ("weight", "bias"))
    rows = (x @ weight.T + bias).view(x.shape[0], -1, 8)
    if name == "v":
        return rows
    low, high = _norm(rows, tensors[f"layers.0.self_attn.{name}_norm.weight"]).chunk(2, -1)
    angles = torch.tensor(positions).view(-1, 1, 1) * 10000.0 ** (-torch.arange(4) / 4)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def test_context_rows_have_no_input_norm() -> None:
    tensors = _tensors(SHAPE)
    layer, rotation = _layer(tensors, context_rows=True), RotaryTable(SHAPE.rope, 8).span(3, 8)
    # Rows whose input norm changes nothing, so that both ways must agree.
    x = torch.nn.functional.normalize(torch.randn(5, 20), dim=-1) * 20**0.5
    tensors["layers.0.input_layernorm.weight"].fill_(1.0)
    _, k, v = _layer(tensors).qkv(x, rotation)
    for actual, expected in zip(layer.kv(x, rotation), (k, v), strict=True):
        torch.testing.assert_close(actual, expected)
    doubled = layer.kv(2 * x, rotation)[1] - tensors["layers.0.self_attn.v_proj.bias"].view(2, 8)
    torch.testing.assert_close(doubled, 2 * (v - tensors["layers.0.self_attn.v_proj.bias"].view(2, 8)))
    with pytest.raises(ValueError, match="without context_rows"):
        _layer(tensors).kv(x, rotation)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_follows_the_definition(rows: int, masked: bool) -> None:
    q, keys, values = torch.randn(rows, 6, 8), torch.randn(2, 63, 8), torch.randn(2, 63, 8)
    mask = torch.where(torch.rand(rows, 63) < 0.5, 0.0, -torch.inf) if masked else None
    out = _layer(_tensors(SHAPE)).attend(q, keys, values, mask).view(rows, 6, 8)
    for head in range(6):
        scores = q[:, head] @ keys[head // 3].T / 8**0.5
        weights = (scores if mask is None else scores + mask).softmax(-1)
        torch.testing.assert_close(out[:, head], weights @ values[head // 3])


def test_finish_follows_the_definition() -> None:
    tensors, x, attended = _tensors(SHAPE), torch.randn(3, 20), torch.randn(3, 48)

    def linear(name: str, rows: torch.Tensor) -> torch.Tensor:
        return rows @ tensors[f"layers.0.{name}_proj.weight"].T + tensors[f"layers.0.{name}_proj.bias"]

    middle = x + linear("self_attn.o", attended)
    inner = _norm(middle, tensors["layers.0.post_attention_layernorm.weight"])
    gate = linear("mlp.gate", inner)
    expected = middle + linear("mlp.down", gate * gate.sigmoid() * linear("mlp.up", inner))
    torch.testing.assert_close(_layer(tensors).finish(x, attended), expected, rtol=1e-4, atol=1e-4)


def test_names_a_tensor_that_is_missing_or_does_not_fit() -> None:
    tensors = _tensors(SHAPE)
    wrong = tensors | {"layers.0.mlp.up_proj.weight": torch.randn(28, 21)}
    with pytest.raises(CheckpointError, match=r"'layers.0.mlp.up_proj.weight' has the shape \[28, 21\].*\[28, 20\]"):
        _layer(wrong)
    del tensors["layers.0.self_attn.k_norm.weight"]
    with pytest.raises(CheckpointError, match=r"no tensor 'layers.0.self_attn.k_norm.weight'"):
        _layer(tensors)
