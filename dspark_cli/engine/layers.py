"""One decoder layer and its rotary table, shared by targets and drafters.

Notation: n rows, H hidden size, D head dimension, I intermediate size.

Rotary embedding pairs element i of a head with i + D/2 in the checkpoint (half-split). Here the rows of the query
and key projections, their biases and norms are reordered once, at loading, so that partners are neighbours and the
rotation is one complex multiplication. Query and key are reordered alike, so their products are unchanged; no
other code sees the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import torch
from dspark_kernels import KernelSet, Linear
from torch import Tensor
from torch.nn import functional

from dspark_cli.engine.model_config import LayerShape, RopeConfig, WeightSource
from dspark_cli.errors import CheckpointError


def read_tensor(weights: WeightSource, name: str, shape: tuple[int, ...]) -> Tensor:
    """Tensor ``name`` in float32, checked to have ``shape``.

    Raises:
        CheckpointError: the tensor is missing or has another shape.
    """
    if name not in weights:
        raise CheckpointError(f"the checkpoint has no tensor '{name}'", "it may be incomplete or of another kind")
    tensor = weights.tensor(name)
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"the tensor '{name}' has the shape {list(tensor.shape)} where the config calls for {list(shape)}",
            "config and weights belong to different models, or one of them is damaged",
        )
    return tensor


class RotaryTable:
    """Rotations by position, computed once and grown when a later position is asked for."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device | str = "cpu") -> None:
        self._frequencies = _frequencies(rope, head_dim).to(device)
        self._table = self._compute(0)

    def _compute(self, positions: int) -> Tensor:
        at = torch.arange(positions, dtype=torch.float32, device=self._frequencies.device)
        angles = torch.outer(at, self._frequencies)
        return torch.complex(angles.cos(), angles.sin()).unsqueeze(1)

    def _reach(self, positions: int) -> None:
        if positions > self._table.shape[0]:
            self._table = self._compute(max(256, 2 * positions))

    def span(self, start: int, stop: int) -> Tensor:
        """The rotation for positions ``start`` … ``stop`` − 1: [stop − start, 1, D/2] complex64, not a copy."""
        self._reach(stop)
        return self._table[start:stop]

    def at(self, positions: Seq[int]) -> Tensor:
        """The rotation for any positions, one a row: [n, 1, D/2] complex64."""
        self._reach(max(positions) + 1)
        return self._table[torch.tensor(positions, dtype=torch.int64, device=self._table.device)]


def _frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle a position for each of the D/2 pairs, float32 and in the order of operations of transformers."""
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.kind == "default":
        return frequencies
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.kind != "llama3":
        raise CheckpointError(f"unknown rope scaling '{rope.kind}'", "known are default, linear, llama3 and factors")
    # Llama 3: long wavelengths are stretched, short ones kept, those between are blended.
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_context / wavelengths
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * frequencies / rope.factor + share * frequencies
    scaled = torch.where(turns < rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(turns > rope.high_freq_factor, frequencies, scaled)


class DecoderLayer:
    """Attention and MLP of one layer, in pieces, so that a causal target and a drafter can both use them.

    Args:
        prefix: what stands before ``self_attn.q_proj.weight`` and the rest, such as ``model.layers.3.``.
        context_rows: also pack what :meth:`kv` needs.

    Raises:
        CheckpointError: a tensor is missing or has a shape that does not fit ``shape``.
    """

    def __init__(
        self,
        shape: LayerShape,
        weights: WeightSource,
        prefix: str,
        kernels: KernelSet,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        context_rows: bool = False,
    ) -> None:
        self.shape = shape
        self._kernels = kernels
        load = _LayerLoader(shape, weights, prefix, device, dtype)
        self._input_norm = load.norm("input_layernorm")
        self._post_norm = load.norm("post_attention_layernorm")
        self._qk_norm = load.qk_norm() if shape.qk_norm else None
        q, k, v = (load.projection(name) for name in ("q", "k", "v"))
        self._qkv = kernels.pack_linear(*load.joined(q, k, v))
        self._kv: Linear | None = kernels.pack_linear(*load.joined(k, v)) if context_rows else None
        del q, k, v
        self._output = kernels.pack_linear(*load.output())
        self._gate_up = kernels.pack_linear(*load.joined(load.mlp("gate"), load.mlp("up")))
        self._down = kernels.pack_linear(*load.mlp_down())

    def qkv(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows ``x`` [n, H] → query [n, heads, D], key and value [n, kv_heads, D], normed and rotated."""
        shape = self.shape
        rows = self._qkv(self._kernels.rms_norm(x, self._input_norm, shape.norm_eps))
        rows = rows.view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim)
        turning, v = rows.split_with_sizes((shape.heads + shape.kv_heads, shape.kv_heads), 1)
        if self._qk_norm is not None:
            turning = self._kernels.rms_norm(turning, self._qk_norm, shape.norm_eps)
        q, k = self._kernels.rotate(turning, rotation).split_with_sizes((shape.heads, shape.kv_heads), 1)
        return q, k, v

    def kv(self, rows: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value [n, kv_heads, D] of ``rows`` [n, H] taken as they are: no input norm.

        This is how a drafter's layer reads its context rows. Needs ``context_rows=True``.
        """
        shape = self.shape
        if self._kv is None:
            raise ValueError("this layer was made without context_rows")
        k, v = self._kv(rows).view(rows.shape[0], 2 * shape.kv_heads, shape.head_dim).chunk(2, 1)
        if self._qk_norm is not None:
            k = self._kernels.rms_norm(k, self._qk_norm[shape.heads :], shape.norm_eps)
        return self._kernels.rotate(k, rotation), v

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Grouped-query attention of ``q`` [n, heads, D] over ``keys`` and ``values`` [kv_heads, m, D] → [n, heads·D].

        ``mask`` [n, m], of the dtype of ``q``, is added to the scores (−inf hides); None shows all to all.
        """
        rows = q.shape[0]
        if rows == 1 and mask is None:
            # The heads of a group stand as the rows of one: no copy, and each key is read once.
            grouped = q.view(1, self.shape.kv_heads, -1, self.shape.head_dim)
            out = functional.scaled_dot_product_attention(grouped, keys.unsqueeze(0), values.unsqueeze(0))
            return out.reshape(1, -1)
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), mask, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(rows, -1)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Rows ``x`` [n, H] and their attention [n, heads·D] → output of the layer [n, H]."""
        x = self._output(attended, x)
        inner = self._kernels.rms_norm(x, self._post_norm, self.shape.norm_eps)
        return self._down(self._kernels.swiglu(self._gate_up(inner)), x)


_Weight = tuple[Tensor, Tensor | None]


class _LayerLoader:
    """Reads the tensors of one layer, in the order that the layer wants them."""

    def __init__(
        self, shape: LayerShape, weights: WeightSource, prefix: str, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self._shape = shape
        self._weights = weights
        self._prefix = prefix
        self._device = torch.device(device)
        self._dtype = dtype

    def _read(self, name: str, *shape: int) -> Tensor:
        return read_tensor(self._weights, self._prefix + name, shape)

    def _linear(self, name: str, out: int, into: int, bias: bool) -> _Weight:
        return self._read(f"{name}.weight", out, into), self._read(f"{name}.bias", out) if bias else None

    def joined(self, *parts: _Weight) -> _Weight:
        """Linears that read the same input, stacked into one."""
        biases = [bias for _, bias in parts if bias is not None]
        weight = torch.cat([weight for weight, _ in parts]) if len(parts) > 1 else parts[0][0]
        return self._placed(weight), self._placed(torch.cat(biases)) if biases else None

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, self._dtype)

    def norm(self, name: str) -> Tensor:
        return self._placed(self._read(f"{name}.weight", self._shape.hidden_size))

    def qk_norm(self) -> Tensor:
        """Norm weights of all query and key heads, [heads + kv_heads, D]."""
        shape = self._shape
        q, k = (_neighbours(self._read(f"self_attn.{name}_norm.weight", shape.head_dim), 1) for name in ("q", "k"))
        return self._placed(torch.cat((q.expand(shape.heads, -1), k.expand(shape.kv_heads, -1))))

    def projection(self, name: str) -> _Weight:
        shape = self._shape
        heads = shape.heads if name == "q" else shape.kv_heads
        out = heads * shape.head_dim
        weight, bias = self._linear(f"self_attn.{name}_proj", out, shape.hidden_size, shape.qkv_bias)
        if name == "v":
            return weight, bias
        return _neighbours(weight, heads), None if bias is None else _neighbours(bias, heads)

    def output(self) -> _Weight:
        shape = self._shape
        name, into = "self_attn.o_proj", shape.heads * shape.head_dim
        return self.joined(self._linear(name, shape.hidden_size, into, shape.output_bias))

    def mlp(self, name: str) -> _Weight:
        shape = self._shape
        return self._linear(f"mlp.{name}_proj", shape.intermediate_size, shape.hidden_size, shape.mlp_bias)

    def mlp_down(self) -> _Weight:
        shape = self._shape
        name = "mlp.down_proj"
        return self.joined(self._linear(name, shape.hidden_size, shape.intermediate_size, shape.mlp_bias))


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows [heads·D, …] with element i of each head brought next to element i + D/2."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
