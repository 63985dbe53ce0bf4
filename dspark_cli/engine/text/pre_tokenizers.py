"""How each kind of byte-level BPE in a GGUF file cuts text into words before merging.

The names are the values of ``tokenizer.ggml.pre`` as llama.cpp defines them; the patterns are those of the models'
own ``tokenizer.json`` files where llama.cpp only approximates them. Every pattern cuts the pieces that the one
before it left, and what a pattern does not match stands as a piece of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CAMEL = (rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+", rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*")
_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
# DeepSeek's list of cased letters is older than Georgian lower case and leaves the mathematical alphabets out.
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{10D0}-\x{10FF}\x{1D400}-\x{1D7CB}]]"
_ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    marks = "" if letters == r"\p{L}" else r"\p{M}"
    symbols = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}|{symbols}|{_BREAKS}"


@dataclass(frozen=True)
class PreType:
    """``whole_words``: a word that is a token as a whole is not cut by merges. ``nfc``: text is composed first."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    nfc: bool = False


_LLAMA3 = PreType((_words(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_LLAMA3_PLAIN = PreType((_words(r"\p{N}{1,3}"),))
_QWEN2 = PreType((_words(r"\p{N}"),), nfc=True)
_QWEN2_LIKE = PreType((_words(r"\p{N}"),))
_SINGLE_DIGITS = PreType((r"\p{N}", _GPT2))
_PLAIN = PreType((_GPT2,))
_GPT4O = PreType((rf"{_CAMEL[0]}{_CONTRACTION}?|{_CAMEL[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_BREAKS}",))
_TEKKEN = PreType((rf"{_CAMEL[0]}|{_CAMEL[1]}|\p{{N}}|{_PATH_SYMBOLS}|{_BREAKS}",), whole_words=True, adds_bos=True)
_DEEPSEEK_LLM = PreType(
    (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreType((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
_DEEPSEEK_V3 = PreType(
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
        rf"|{_BREAKS}",
    )
)
DEFAULT = PreType((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TYPES: dict[str, PreType] = {
    "default": DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4"), _PLAIN),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _SINGLE_DIGITS
    ),
    "mellum2": _SINGLE_DIGITS,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_PLAIN),
    "qwen2": _QWEN2,
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "hunyuan", "solar-open"), _QWEN2_LIKE),
    "qwen35": PreType((_words(r"\p{N}", r"\p{L}\p{M}"),), nfc=True),
    "minicpm5": PreType((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O),
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3),
    "falcon": PreType((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
}


def build(kind: PreType) -> pre_tokenizers.PreTokenizer:
    """The cutter of one kind, ending in the byte alphabet of GPT-2."""
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
