from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from dspark_cli.engine.text import tokenizer
from dspark_cli.engine.text.spelling import BYTE_ALPHABET
from dspark_cli.engine.text.tokenizer import Tokenizer
from dspark_cli.errors import CheckpointError
from tests.engine.text.vocabularies import (
    GOLDEN,
    demo,
    demo_metadata,
    sentencepiece,
    sentencepiece_metadata,
    transformers_demo,
)

TEXTS = (
    "", " ", "  ", "\n", "\n\n", " \n ", "Hello world", "  two  spaces   three", "tabs\tand\r\nbreaks\r\r\n",
    "I'm sure they'll say it's fine, don't you? WE'VE", "1234567890 and 3.14159, 2024-01-01", "x=1;y+=2 // note",
    "def f(a, b):\n    return a ** b\n\n\nclass C:\n\tpass\n", "naïve café Ünïcödé", "日本語のテキスト",
    "한국어", "привет мир", "שלום עולם", "हिन्दी पाठ", "ไทย", "🙂 👩‍👩‍👧 🇩🇪", "e\u0301 \u00a0 \u200b \u2028", "½ Ⅷ ² ٣",
    "a" * 300, "-" * 77, "\x00\x01\x7f", "trailing space ", "<|im_start|>user\nhi<|im_end|>\n",
    "a<|im_end|>b <|endoftext|>", "<|im_end", "<|im_start|><|im_start|>",
)  # fmt: skip


@pytest.fixture(scope="module")
def published() -> Backend:
    """The demo's vocabulary under the pre-tokenizer of its published ``tokenizer.json``, put together by hand."""
    tokens, merges = demo_metadata()["tokenizer.ggml.tokens"], demo_metadata()["tokenizer.ggml.merges"]
    backend = Backend(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(tokens[:17])
    return backend


@pytest.mark.parametrize("text", TEXTS)
def test_the_demo_agrees_with_its_published_tokenizer(published: Backend, text: str) -> None:
    ids = demo().encode(text, special=True)
    assert ids == published.encode(text, add_special_tokens=False).ids
    assert demo().decode(ids) == published.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=60))
def test_the_demo_agrees_on_any_text(published: Backend, text: str) -> None:
    assert demo().encode(text, special=True) == published.encode(text, add_special_tokens=False).ids


def test_the_demo_agrees_with_transformers_where_no_digits_are() -> None:
    # transformers rebuilds this file with GPT-2's own cutting, which does not set digits apart.
    theirs = transformers_demo()
    compared = [text for text in TEXTS if not any(char.isnumeric() for char in text)]
    assert len(compared) > 20
    for text in compared:
        assert demo().encode(text, special=True) == theirs(text, add_special_tokens=False).input_ids, text
    for text in TEXTS:
        ids = demo().encode(text, special=True)
        assert demo().decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_digits_stand_alone_in_the_demo() -> None:
    assert [demo().piece(i) for i in demo().encode("pay 1234", special=False)] == ["pay", " ", "1", "2", "3", "4"]


def test_special_text_is_a_token_only_where_asked_for() -> None:
    assert demo().encode("<|im_end|>", special=True) == [2]
    plain = demo().encode("<|im_end|>", special=False)
    assert len(plain) > 3
    assert not demo().special_ids & set(plain)
    assert demo().decode(plain) == "<|im_end|>"
    assert demo().decode([2]) == ""


@given(st.text())
def test_plain_text_comes_back(text: str) -> None:
    for known in (demo(), sentencepiece()):
        ids = known.encode(text, special=False)
        # The demo's vocabulary has no token for some bytes that begin unassigned planes.
        assert known.decode(ids) == (text if known is sentencepiece() else _sayable(text))
        assert not known.special_ids & set(ids)


def _sayable(text: str) -> str:
    missing = {BYTE_ALPHABET[char] for char in BYTE_ALPHABET.keys() - set(demo_metadata()["tokenizer.ggml.tokens"])}
    return bytes(byte for byte in text.encode() if byte not in missing).decode(errors="replace")


@given(st.lists(st.integers(0, 49151), max_size=12))
def test_decoding_any_ids_equals_the_library(published: Backend, ids: list[int]) -> None:
    assert demo().decode(ids) == published.decode(ids, skip_special_tokens=True)


def test_pieces_show_half_characters_and_never_fail() -> None:
    emoji = demo().encode("🤖", special=False)
    assert len(emoji) > 1
    assert all("\\x" in demo().piece(i) for i in emoji)
    assert demo().piece(2) == "<|im_end|>"
    assert demo().piece(10**9) == "<id 1000000000>"
    assert demo().piece(-1) == "<id -1>"
    assert demo().token_bytes(2) is None
    assert demo().token_bytes(10**9) is None
    assert all(isinstance(demo().piece(i), str) for i in range(0, demo().vocab_size, 97))


def test_the_demo_names_its_tokens() -> None:
    known = demo()
    assert (known.bos_id, known.eos_id, known.adds_bos, known.vocab_size) == (1, 2, False, 49152)
    assert known.named["bos_token"] == "<|im_start|>"
    assert isinstance(known.template, str)
    assert known.special_ids == frozenset(range(17))
    assert known.raw_prompt_ids("Hi") == known.encode("Hi", special=True)


# The golden folder


def test_golden_prompts_keep_every_character() -> None:
    known = tokenizer.from_folder(GOLDEN)
    assert known.encode("12+30=", special=True) == [6, 7, 15, 8, 5, 18]
    golden = json.loads((GOLDEN.parent / "golden.json").read_text())
    for run in golden["runs"]:
        assert known.raw_prompt_ids(run["prompt"]) == run["prompt_ids"]
    assert known.decode(known.encode("the small cat ", special=True)) == "the small cat "
    assert (known.bos_id, known.eos_id, known.adds_bos, known.vocab_size) == (0, 1, False, 64)


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, folder / "model", ignore=shutil.ignore_patterns("*.safetensors")))


def test_bos_is_added_where_the_folder_does_and_never_twice(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(folder / "tokenizer.json"))
    known = tokenizer.from_folder(folder)
    assert known.adds_bos
    assert known.raw_prompt_ids("12") == [0, 6, 7]
    assert known.raw_prompt_ids("<s>12") == [0, 6, 7]
    assert known.raw_prompt_ids("") == [0]
    assert known.encode("12", special=True) == [6, 7]


def test_templates_come_from_their_own_file_first(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    assert tokenizer.from_folder(folder).template == "from the file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert tokenizer.from_folder(folder).template == {"default": "from the file", "tool_use": "tools"}
    (folder / "chat_template.jinja").unlink()
    listed = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    assert tokenizer.from_folder(folder).template == {"default": "a", "rag": "b", "tool_use": "tools"}
    (folder / "tokenizer_config.json").unlink()
    (folder / "additional_chat_templates" / "tool_use.jinja").unlink()
    assert tokenizer.from_folder(folder).template is None


def test_a_named_token_is_special_even_where_the_vocabulary_calls_it_ordinary(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    body = json.loads((folder / "tokenizer.json").read_text())
    body["added_tokens"] = [token for token in body["added_tokens"] if token["content"] != "</s>"]
    (folder / "tokenizer.json").write_text(json.dumps(body))
    known = tokenizer.from_folder(folder)
    assert known.encode("1</s>", special=True) == [6, 1]
    assert known.decode([6, 1]) == "1"
    assert known.vocab_size == 64


def test_missing_and_damaged_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        tokenizer.from_folder(tmp_path)
    folder = _copy(tmp_path)
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        tokenizer.from_folder(folder)
    body = json.loads(whole)
    body["decoder"] = {"type": "CTC", "pad_token": "x", "word_delimiter_token": "|", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match="unknown kind"):
        tokenizer.from_folder(folder)
    (folder / "tokenizer.json").write_text(whole)
    (folder / "tokenizer_config.json").write_text('{"bos_token": ')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is damaged"):
        tokenizer.from_folder(folder)


def test_a_folder_and_a_file_of_one_vocabulary_have_one_fingerprint(published: Backend, tmp_path: Path) -> None:
    published.save(str(tmp_path / "tokenizer.json"))
    folder = tokenizer.from_folder(tmp_path)
    assert folder.fingerprint() == demo().fingerprint()
    assert folder.fingerprint() != tokenizer.from_folder(GOLDEN).fingerprint()
    padded = dict(demo_metadata())
    padded["tokenizer.ggml.tokens"] = [*padded["tokenizer.ggml.tokens"], "[PAD49152]", "[PAD49153]"]
    padded["tokenizer.ggml.token_type"] = [*padded["tokenizer.ggml.token_type"], 5, 5]
    known = tokenizer.from_gguf(padded)
    assert known.vocab_size == 49154
    assert known.fingerprint() == demo().fingerprint()
    swapped = dict(demo_metadata())
    swapped["tokenizer.ggml.tokens"] = list(swapped["tokenizer.ggml.tokens"])
    swapped["tokenizer.ggml.tokens"][20:22] = swapped["tokenizer.ggml.tokens"][21:19:-1]
    assert tokenizer.from_gguf(swapped).fingerprint() != demo().fingerprint()


def test_reasoning_tags_stay_visible_even_where_a_file_calls_them_special() -> None:
    changed = dict(demo_metadata())
    changed["tokenizer.ggml.tokens"] = [*changed["tokenizer.ggml.tokens"], "<think>"]
    changed["tokenizer.ggml.token_type"] = [*changed["tokenizer.ggml.token_type"], 3]
    known = tokenizer.from_gguf(changed)
    assert known.encode("<think>", special=True) == [49152]
    assert known.decode([49152]) == "<think>"


# Sentencepiece


def _reference_spm(known: Tokenizer, text: str) -> list[int]:
    """The algorithm in its plainest form: merge the neighbours that make the best piece, leftmost first."""
    metadata = sentencepiece_metadata()
    tokens, scores, types = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    ids = {token: i for i, token in enumerate(tokens)}
    best = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == 1}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(best[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in best]
        if not pairs:
            break
        i = -max(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out: list[int] = []
    for part in parts:
        out += [ids[part]] if part in best else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return out


@given(st.text(alphabet=" aabehllotwr in=12<>/sxé日🙂\n", max_size=40))
def test_sentencepiece_merges_by_score(text: str) -> None:
    assert sentencepiece().encode(text, special=False) == _reference_spm(sentencepiece(), text)


def test_sentencepiece_puts_a_space_in_front_and_takes_it_away() -> None:
    known = sentencepiece()
    ids = known.encode("hello world", special=False)
    assert [known.piece(i) for i in ids] == [" hello", " world"]
    assert known.decode(ids) == "hello world"
    assert known.decode(ids, continues=True) == " hello world"
    assert known.decode(known.encode("  a", special=False)) == "  a"
    assert known.adds_bos
    assert known.raw_prompt_ids("hello") == [1, *known.encode("hello", special=False)]
    assert known.raw_prompt_ids("<s>hello") == [1, *known.encode("hello", special=False)]


def test_sentencepiece_without_the_space() -> None:
    known = tokenizer.from_gguf(sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False}))
    ids = known.encode("hello world", special=False)
    assert [known.piece(i) for i in ids] == ["hello", " world"]
    assert known.decode(ids) == "hello world"
    assert known.decode(known.encode(" hello", special=False)) == " hello"


def test_sentencepiece_control_and_user_defined_tokens() -> None:
    known = sentencepiece()
    assert known.encode("</s>[TOOL]", special=True) == [2, 259]
    plain = known.encode("</s>[TOOL]", special=False)
    assert 2 not in plain
    assert plain[-1] == 259  # user-defined tokens are text, always cut out whole
    assert known.decode([2, 259]) == "[TOOL]"
    assert known.special_ids == {0, 1, 2}


def test_sentencepiece_bytes() -> None:
    known = sentencepiece()
    ids = known.encode("🙂", special=False)
    assert known.decode(ids) == "🙂"
    assert [known.token_bytes(i) for i in ids[1:]] == [bytes([b]) for b in "🙂".encode()]
    assert known.decode(ids[:-1]) == "\ufffd"
    assert known.piece(ids[1]) == "\\xf0"


# What a GGUF file may say


def test_the_files_own_word_on_bos_counts() -> None:
    known = tokenizer.from_gguf(sentencepiece_metadata(**{"tokenizer.ggml.add_bos_token": False}))
    assert known.raw_prompt_ids("hello") == known.encode("hello", special=False)
    llama = tokenizer.from_gguf({**demo_metadata(), "tokenizer.ggml.pre": "llama-bpe"})
    assert not llama.adds_bos
    silent = {key: value for key, value in demo_metadata().items() if key != "tokenizer.ggml.add_bos_token"}
    assert tokenizer.from_gguf({**silent, "tokenizer.ggml.pre": "llama-bpe"}).raw_prompt_ids("a")[0] == 1
    assert tokenizer.from_gguf(silent).raw_prompt_ids("a")[0] != 1


def test_a_file_that_does_not_say_how_to_cut_words_is_told_about() -> None:
    silent = {key: value for key, value in demo_metadata().items() if key != "tokenizer.ggml.pre"}
    known = tokenizer.from_gguf(silent)
    assert len(known.notes) == 1
    assert "does not say" in known.notes[0]
    assert demo().notes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.pre": "of-tomorrow"}, "'of-tomorrow' is not known"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not known"),
        ({"tokenizer.ggml.model": None}, "has no tokenizer"),
        ({"tokenizer.ggml.tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokenizer.ggml.merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.merges": ["zzzz qqqq"]}, "merges do not fit"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "differ in length"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "lists a token twice"),
    ],
)
def test_bad_key_values_are_told(changes: dict[str, object], words: str) -> None:
    metadata = {key: value for key, value in {**demo_metadata(), **changes}.items() if value is not None}
    with pytest.raises(CheckpointError, match=words):
        tokenizer.from_gguf(metadata)


def test_named_templates_and_end_ids_of_a_file() -> None:
    changes = {
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.eom_token_id": 5,
    }
    known = tokenizer.from_gguf({**demo_metadata(), **changes})
    assert known.template == {"default": demo().template, "tool_use": "tools"}
    assert known.end_ids == {2, 5}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", b'{"chat_template": 7}'),
    ],
)
def test_a_damaged_chat_template_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    golden = Path(__file__).parents[2] / "golden" / "qwen3-tiny" / "target" / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_bytes(golden.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        tokenizer.from_folder(tmp_path)
