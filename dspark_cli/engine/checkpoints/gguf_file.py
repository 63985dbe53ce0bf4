"""Open a GGUF file as a target: ggml's tensor names, row order and quantized blocks become Hugging Face's tensors."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark_cli.engine.checkpoints.checkpoint import Checkpoint
from dspark_cli.engine.checkpoints.gguf_config import gguf_config, gguf_generation
from dspark_cli.engine.checkpoints.gguf_container import GgufContainer, QuantType, read_container
from dspark_cli.engine.checkpoints.tensor_shapes import check_shapes, target_shapes
from dspark_cli.engine.model_config import TargetConfig

_WHOLE_MODEL: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ROPE_FACTORS: Final = "rope_freqs.weight"
# Values dequantized at a time: many enough for numpy, few enough for the processor cache. Threads gain nothing.
_CHUNK: Final = 1 << 16


def ggml_name(name: str) -> str:
    """The ggml name of the tensor that Hugging Face calls ``name``.

    Raises:
        KeyError: a target has no such tensor.
    """
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _WHOLE_MODEL[name]
    layer, part, kind = match.groups()
    return f"blk.{layer}.{_IN_LAYER[part]}.{kind}"


class GgufWeights:
    """A weight source over one GGUF file; tensors are dequantized when asked for."""

    def __init__(self, container: GgufContainer, config: TargetConfig) -> None:
        self._container = container
        self._config = config
        self._names = {name: ggml_name(name) for name in target_shapes(config)}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in float32, in Hugging Face's shape and row order. Do not write to it."""
        info = self._container.tensors[self._names[name]]
        raw = self._container.raw(info)
        heads = self._rotated_heads(name)
        if heads:
            raw = half_split_rows(raw.reshape(info.shape[0], -1), heads)
        return dequantized(raw, info.kind).reshape(info.shape)

    def _rotated_heads(self, name: str) -> int:
        """How many heads the rows of ``name`` hold that llama's converter has reordered; 0 for all others."""
        if self._config.family != "llama":
            return 0
        layer = self._config.layer
        return layer.heads if ".q_proj." in name else layer.kv_heads if ".k_proj." in name else 0

    @property
    def weights_format(self) -> str:
        """The ggml type that takes most of the bytes, such as ``Q4_1``."""
        sizes: Counter[str] = Counter()
        for info in self._container.tensors.values():
            sizes[info.kind.name] += info.size
        return sizes.most_common(1)[0][0]


def half_split_rows(rows: npt.NDArray[np.uint8], heads: int) -> npt.NDArray[np.uint8]:
    """Undo the row order of llama's converter, which interleaves the two halves of each head.

    ``rows`` [heads · head_dim, bytes a row]: row 2i+j of a head becomes row j·head_dim/2 + i.
    """
    halves = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def dequantized(raw: npt.NDArray[np.uint8], kind: QuantType) -> Tensor:
    """The stored bytes of whole blocks as float32 [values]; memory is shared where they are float32 already."""
    flat = raw.reshape(-1)
    if kind.name == "F32":
        return torch.from_numpy(np.require(flat.view("<f4"), requirements=["A", "W"]))
    # Imported here: it takes a tenth of a second, and unquantized files do without.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values = np.empty(flat.size // kind.size * kind.block, np.float32)
    code: Any = GGMLQuantizationType(kind.code)
    step = _CHUNK // kind.block
    for start in range(0, flat.size // kind.size, step):
        piece = flat[start * kind.size : (start + step) * kind.size].reshape(1, -1)
        values[start * kind.block : (start + step) * kind.block] = dequantize(piece, code)[0]
    return torch.from_numpy(values)


def open_gguf(path: Path) -> Checkpoint:
    """Open the target in the GGUF file ``path``; every tensor name and shape is checked, no weight is read.

    Raises:
        CheckpointError: the file is missing, damaged, of an unknown architecture or tensor type, or its tensors are
            not those that its key-values call for.
    """
    container = read_container(path)
    shapes = {name: info.shape for name, info in container.tensors.items()}
    config = gguf_config(container.metadata, shapes, _rope_factors(container), str(path))
    wanted = {ggml_name(name): shape for name, shape in target_shapes(config).items()}
    check_shapes(wanted, shapes, path, "its key-values")
    weights = GgufWeights(container, config)
    generation = gguf_generation(container.metadata, str(path))
    return Checkpoint(config, weights, path, "gguf", container.metadata, generation)


def _rope_factors(container: GgufContainer) -> tuple[float, ...] | None:
    info = container.tensors.get(_ROPE_FACTORS)
    return None if info is None else tuple(dequantized(container.raw(info), info.kind).tolist())
