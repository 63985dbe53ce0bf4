"""How each kind cuts text; the expected cuts are those of the models' published tokenizers."""

from __future__ import annotations

import pytest

from dspark_cli.engine.text import pre_tokenizers
from dspark_cli.engine.text.spelling import BYTE_ALPHABET


def cut(name: str, text: str) -> list[str]:
    words = pre_tokenizers.build(pre_tokenizers.PRE_TYPES[name]).pre_tokenize_str(text)
    return [bytes(BYTE_ALPHABET[char] for char in word).decode() for word, _ in words]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll pay 12345  now!!\n\n x", ["I", "'ll", " pay", " 12345", " ", " now", "!!", "\n\n", " x"]),
        ("gpt-2", "I'LL", ["I", "'", "LL"]),
        ("smollm", "pay 123  x", ["pay", " ", "1", "2", "3", " ", " x"]),
        ("llama-bpe", "I'LL pay 12345.\n\nok", ["I", "'LL", " pay", " ", "123", "45", ".\n\n", "ok"]),
        ("llama-bpe", "a_b (c)", ["a", "_b", " (", "c", ")"]),
        ("qwen2", "I'LL pay 12345.\n\nok", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "5", ".\n\n", "ok"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("qwen2", "हिन्दी", ["ह", "िन", "्द", "ी"]),
        ("tekken", "camelCase HTTPServer 12/\nx", ["camel", "Case", " HTTPServer", " ", "1", "2", "/\n", "x"]),
        ("gpt-4o", "don't 1234", ["don't", " ", "123", "4"]),
        ("deepseek-llm", "Hello, world 123\n日本 x", ["Hello", ",", " world", " ", "123", "\n", "日本", " x"]),
        ("deepseek-coder", "if x1:\n  y", ["if", " x", "1", ":", "\n", " ", " y"]),
        ("deepseek-v3", "x=1234 (ok)日本", ["x", "=", "123", "4", " (", "ok", ")", "日本"]),
        ("default", "a=12345, b", ["a", "=", "123", "45", ",", " b"]),
        ("falcon", "a 12345", ["a", " ", "123", "45"]),
    ],
)
def test_cuts(name: str, text: str, words: list[str]) -> None:
    assert cut(name, text) == words


@pytest.mark.parametrize("name", sorted(pre_tokenizers.PRE_TYPES))
def test_no_kind_loses_a_character(name: str) -> None:
    text = "I'm  naïve:\r\n\t日本語 12,345.67 <a href='x'>🙂</a> ЗДРАВСТВУЙ ᾳ ½ \u00a0 e\u0301 \n\n  "
    assert "".join(cut(name, text)) == text
