"""Text to token ids and back, whatever file the vocabulary comes from."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from dspark_cli.engine.text import gguf_vocabulary, spelling
from dspark_cli.engine.text.spelling import Spelling
from dspark_cli.errors import CheckpointError

Template = str | dict[str, str] | None

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Reasoning is told from the answer by these two, so they stay visible even where a file calls them special.
_VISIBLE = ("<think>", "</think>")
_PADDING = re.compile(r"\[PAD(\d+)\]")


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says about its tokenizer beside the vocabulary itself.

    ``named`` holds the texts of ``bos_token``, ``eos_token`` … for the chat template; ``end_ids`` are further ids
    that end a turn; ``silent_ids`` give no text.
    """

    named: Mapping[str, str]
    silent_ids: frozenset[int]
    adds_bos: bool
    template: Template = None
    end_ids: frozenset[int] = frozenset()
    notes: tuple[str, ...] = field(default=())


class Tokenizer:
    """A vocabulary with its rules. Safe to use from several threads."""

    def __init__(self, backend: Backend, spelled: Spelling, facts: Facts) -> None:
        self._backend = backend
        self._spelling = spelled
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        self.named = dict(facts.named)
        self.template = facts.template
        self.end_ids = facts.end_ids
        self.notes = facts.notes
        self.bos_id = self._named_id("bos_token")
        self.eos_id = self._named_id("eos_token")
        self.adds_bos = facts.adds_bos and self.bos_id is not None
        self.added_ids = frozenset(backend.get_added_tokens_decoder())
        self.special_ids = facts.silent_ids
        self._silent = facts.silent_ids - {i for text in _VISIBLE if (i := backend.token_to_id(text)) is not None}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text as a whole loses one leading space, which encoding had put there."""
        return self._spelling.strips_space

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The ids of ``text``, with nothing added.

        ``special``: the text of a special token becomes that token (rendered templates, raw prompts); otherwise it
        is ordinary text.
        """
        with self._lock:
            self._backend.encode_special_tokens = not special
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def raw_prompt_ids(self, text: str) -> list[int]:
        """The ids of a prompt without a template: BOS in front where the tokenizer adds it, and never twice."""
        ids = self.encode(text, special=True)
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def token_bytes(self, token: int) -> bytes | None:
        """What ``token`` adds to a text; None for special tokens and for ids outside the vocabulary."""
        if token in self._silent:
            return None
        found = self._bytes.get(token)
        if found is None:
            spelled = self._backend.id_to_token(token) if token >= 0 else None
            if spelled is None:
                return None
            # Added tokens are not written in the byte alphabet.
            as_spelled = self._spelling.byte_level and token in self.added_ids
            found = spelled.encode() if as_spelled else self._spelling.to_bytes(spelled)
            self._bytes[token] = found
        return found

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str:
        """The text of ``ids`` without special tokens; bytes that are no character become U+FFFD.

        ``continues``: other text stands before it, so a leading space belongs to it.
        """
        text = b"".join(self.token_bytes(i) or b"" for i in ids).decode("utf-8", errors="replace")
        strips = self.strips_leading_space and not continues
        return text[1:] if strips and text.startswith(" ") else text

    def piece(self, token: int) -> str:
        r"""One token for people: special tokens by name, half a character as ``\xe2``. Never raises."""
        found = self.token_bytes(token)
        if found is not None:
            return found.decode("utf-8", errors="backslashreplace")
        return (self._backend.id_to_token(token) if token >= 0 else None) or f"<id {token}>"

    def fingerprint(self) -> str:
        """A digest of which text stands behind which id; equal for one vocabulary from a folder and from a GGUF file.

        Padding at the end of a GGUF vocabulary does not count.
        """
        digest = hashlib.sha256()
        vocab = self._backend.get_vocab(with_added_tokens=True)
        for token, i in sorted(vocab.items(), key=lambda item: item[1]):
            padding = _PADDING.fullmatch(token)
            if padding is None or int(padding[1]) != i:
                digest.update(f"{i}\t{token}\n".encode("utf-8", errors="surrogatepass"))
        return digest.hexdigest()

    def _named_id(self, name: str) -> int | None:
        text = self.named.get(name)
        return None if text is None else self._backend.token_to_id(text)


def from_folder(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: ``tokenizer.json``, with ``tokenizer_config.json`` where there is one.

    Raises:
        CheckpointError: a file is missing or damaged, or its decoder is of an unknown kind.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"{path} has no tokenizer.json", "save it with transformers' AutoTokenizer(...).save_pretrained"
        )
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{file} is damaged ({error})", "download it again") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(path / "tokenizer_config.json")
    named = _named_tokens({**_read_json(path / "special_tokens_map.json"), **config})
    _mark_special(backend, named)
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    bos = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    facts = Facts(named, frozenset(special), _puts_in_front(backend, bos), _folder_template(path, config))
    return Tokenizer(backend, spelling.of_backend(backend, str(file)), facts)


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the key-values of a GGUF file describe.

    Raises:
        CheckpointError: they are missing, contradict each other, or are of a kind that is not known here.
    """
    rebuilt = gguf_vocabulary.rebuild(metadata)
    tokens = rebuilt.vocabulary.tokens
    # llama.cpp's defaults for sentencepiece; byte-level files name theirs.
    defaults = {"unknown": 0, "bos": 1, "eos": 2} if rebuilt.vocabulary.kind == "llama" else {}
    named = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id", defaults.get(key))
        if token is not None and 0 <= int(token) < len(tokens):
            named[name] = tokens[int(token)]
    end_ids = [int(metadata.get(f"tokenizer.ggml.{key}_token_id", -1)) for key in ("eot", "eom")]
    facts = Facts(
        named,
        rebuilt.vocabulary.silent_ids,
        bool(metadata.get("tokenizer.ggml.add_bos_token", rebuilt.adds_bos)),
        _gguf_template(metadata),
        frozenset(i for i in end_ids if 0 <= i < len(tokens)),
        rebuilt.notes,
    )
    return Tokenizer(rebuilt.backend, spelling.of_backend(rebuilt.backend, "the GGUF file"), facts)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{file} is damaged ({error})", "download it again") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{file} is damaged (not a JSON object)", "download it again")
    return body


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for name in _NAMED:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _mark_special(backend: Backend, named: Mapping[str, str]) -> None:
    """Make the named tokens special where ``tokenizer.json`` knows them as ordinary ones only."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for name, text in named.items():
        if name != "unk_token" and text not in known and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, normalized=False, special=True)])


def _puts_in_front(backend: Backend, bos: int | None) -> bool:
    return bos is not None and bos in backend.encode("", add_special_tokens=True).ids[:1]


def _folder_template(path: Path, config: Mapping[str, Any]) -> Template:
    """The template's own files go before the entry in ``tokenizer_config.json``."""
    more = {file.stem: _read_text(file) for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    file = path / "chat_template.jinja"
    if file.is_file():
        main = _read_text(file)
        return {"default": main, **more} if more else main
    entry = config.get("chat_template")
    if isinstance(entry, list):
        entry = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
    if entry is not None and not _is_template(entry):
        raise CheckpointError(
            f"the chat_template in {path / 'tokenizer_config.json'} is no text and no table of named texts",
            "the file is damaged: fetch it again",
        )
    if isinstance(entry, dict):
        return {**entry, **more}
    return {"default": entry, **more} if entry and more else entry or more or None


def _is_template(entry: object) -> bool:
    texts = [*entry, *entry.values()] if isinstance(entry, dict) else [entry]
    return all(isinstance(text, str) for text in texts)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})", "fetch the file again") from error


def _gguf_template(metadata: Mapping[str, Any]) -> Template:
    prefix = "tokenizer.chat_template"
    main = metadata.get(prefix)
    more = {key[len(prefix) + 1 :]: value for key, value in metadata.items() if key.startswith(prefix + ".")}
    return {**({"default": main} if main else {}), **more} if more else main
