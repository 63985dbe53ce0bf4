"""From the way a vocabulary spells a token to the bytes that the token stands for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from dspark_cli.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest for 256, 257 … in order."""
    alphabet = {}
    shifted = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            alphabet[chr(byte)] = byte
        else:
            alphabet[chr(shifted)] = byte
            shifted += 1
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


@dataclass(frozen=True)
class Spelling:
    """The decoder of a tokenizer, token by token.

    ``strips_space``: the text as a whole loses one leading space, which the encoder had put there.
    """

    byte_level: bool = False
    byte_tokens: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    joiner: str = ""
    strips_space: bool = False

    def to_bytes(self, token: str) -> bytes:
        """The bytes of one token; where byte tokens are in use ``<0xE2>`` is one byte."""
        if self.byte_level:
            codes = [BYTE_ALPHABET.get(char) for char in token]
            known = [code for code in codes if code is not None]
            return bytes(known) if len(known) == len(codes) else token.encode()
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def of_backend(backend: Backend, source: str) -> Spelling:
    """Read the decoder of ``backend``; ``source`` is its file, for the error.

    Raises:
        CheckpointError: the decoder has a step that does not work token by token.
    """
    if backend.decoder is None:
        # Without a decoder the library puts a space between tokens, which no causal model means.
        raise CheckpointError(f"{source} has no decoder", "use the tokenizer.json that the model's authors published")
    state = json.loads(backend.decoder.__getstate__())
    values: dict[str, Any] = {"replacements": []}
    for step in state["decoders"] if state["type"] == "Sequence" else [state]:
        if not _read_step(step, values):
            raise CheckpointError(
                f"{source} decodes with a step of an unknown kind ({step.get('type')})",
                "use a model of the Llama, Qwen, Mistral or SmolLM2 family",
            )
    return Spelling(**{**values, "replacements": tuple(values["replacements"])})


def _read_step(step: dict[str, Any], values: dict[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "ByteLevel":
        values["byte_level"] = True
    elif kind == "ByteFallback":
        values["byte_tokens"] = True
    elif kind == "Replace" and "String" in step["pattern"]:
        values["replacements"].append((step["pattern"]["String"], step["content"]))
    elif kind == "Metaspace":
        values["replacements"].append((step["replacement"], " "))
        values["strips_space"] = step.get("prepend_scheme", "always") != "never"
    elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
        values["strips_space"] = step["start"] > 0
    elif kind != "Fuse":
        return False
    return True
