"""A tokenizer rebuilt from the key-values of a GGUF file: byte-level BPE, or sentencepiece BPE from its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from dspark_cli.engine.text import pre_tokenizers
from dspark_cli.errors import CheckpointError

_UNDEFINED, _NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(7)
_HF_FOLDER = "use the model's Hugging Face folder, which has its own tokenizer.json"


@dataclass(frozen=True)
class Vocabulary:
    """What the file says: ``kind`` is ``gpt2`` or ``llama`` (sentencepiece); one entry a token id elsewhere."""

    kind: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]

    def ids_of(self, *types: int) -> frozenset[int]:
        return frozenset(i for i, kind in enumerate(self.token_types) if kind in types)

    @property
    def silent_ids(self) -> frozenset[int]:
        """Ids that give no text: control, unknown and unused tokens."""
        return self.ids_of(_CONTROL, _UNKNOWN, _UNUSED)


@dataclass(frozen=True)
class Rebuilt:
    """``adds_bos`` as the kind of tokenizer has it where the file says nothing; ``notes`` are for the user."""

    backend: Tokenizer
    vocabulary: Vocabulary
    adds_bos: bool
    notes: tuple[str, ...] = ()


def rebuild(metadata: Mapping[str, Any]) -> Rebuilt:
    """The tokenizer that the ``tokenizer.ggml.*`` key-values describe.

    Raises:
        CheckpointError: they are missing, contradict each other, or are of a kind that is not known here.
    """
    vocabulary = _read(metadata)
    build = _byte_level if vocabulary.kind == "gpt2" else _sentencepiece
    rebuilt = build(vocabulary, metadata)
    special = vocabulary.ids_of(_CONTROL, _UNKNOWN)
    added = special | vocabulary.ids_of(_USER_DEFINED)
    rebuilt.backend.add_tokens(
        [AddedToken(vocabulary.tokens[i], normalized=False, special=i in special) for i in sorted(added)]
    )
    if rebuilt.backend.get_vocab_size() != len(vocabulary.tokens):
        raise CheckpointError("the GGUF file's token list contradicts itself", _HF_FOLDER)
    return rebuilt


def _array(metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        raise CheckpointError(f"the GGUF file has no tokenizer.ggml.{name}", _HF_FOLDER)
    return value  # type: ignore[no-any-return]


def _read(metadata: Mapping[str, Any]) -> Vocabulary:
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        cause = "the GGUF file has no tokenizer" if kind is None else f"the GGUF file's tokenizer {kind!r} is not known"
        raise CheckpointError(cause, _HF_FOLDER)
    tokens = tuple(text or f"[EMPTY_{i}]" for i, text in enumerate(_array(metadata, "tokens")))
    if len(set(tokens)) != len(tokens):
        raise CheckpointError("the GGUF file lists a token twice", _HF_FOLDER)
    types = metadata.get("tokenizer.ggml.token_type")
    token_types = (_NORMAL,) * len(tokens) if types is None else tuple(int(t) for t in types)
    if len(token_types) != len(tokens):
        raise CheckpointError("the GGUF file's token_type and tokens differ in length", _HF_FOLDER)
    return Vocabulary(kind, tokens, token_types)


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Rebuilt:
    name = metadata.get("tokenizer.ggml.pre")
    notes: tuple[str, ...] = ()
    if name is None:
        name = "default"
        notes = ("the GGUF file does not say how its tokenizer cuts words; answers may be worse than the model's own",)
    if name not in pre_tokenizers.PRE_TYPES:
        raise CheckpointError(f"the GGUF file's pre-tokenizer {name!r} is not known", _HF_FOLDER)
    pre_type = pre_tokenizers.PRE_TYPES[name]
    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    # A merge's left side may itself begin with a space; the separator is the first one after that.
    merges = [(m[:cut], m[cut + 1 :]) for m in _array(metadata, "merges") if (cut := m.find(" ", 1)) > 0]
    backend = Tokenizer(_bpe(vocab, merges, ignore_merges=pre_type.whole_words))
    if pre_type.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.build(pre_type)
    backend.decoder = decoders.ByteLevel()
    return Rebuilt(backend, vocabulary, pre_type.adds_bos, notes)


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Rebuilt:
    scores = [float(score) for score in _array(metadata, "scores")]
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError("the GGUF file's scores and tokens differ in length", _HF_FOLDER)
    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = min(vocabulary.ids_of(_UNKNOWN), default=metadata.get("tokenizer.ggml.unknown_token_id", 0))
    backend = Tokenizer(
        _bpe(
            vocab,
            _merges_from_scores(vocabulary, scores),
            byte_fallback=bool(vocabulary.ids_of(_BYTE)),
            fuse_unk=True,
            unk_token=vocabulary.tokens[int(unknown)],
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return Rebuilt(backend, vocabulary, adds_bos=True)


def _merges_from_scores(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that together are a token, best score first.

    Only ordinary tokens take part: plain text never becomes a control token by merging.
    """
    ordinary = {vocabulary.tokens[i]: i for i in sorted(vocabulary.ids_of(_UNDEFINED, _NORMAL))}
    ranked = []
    for token, i in ordinary.items():
        for cut in range(1, len(token)):
            left, right = ordinary.get(token[:cut]), ordinary.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right))
    ranked.sort()
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises plain Exception for a merge of tokens that do not exist
        raise CheckpointError(f"the GGUF file's merges do not fit its tokens ({error})", _HF_FOLDER) from error
