from __future__ import annotations

from dspark_cli.engine.text import stop_ids, tokenizer
from dspark_cli.engine.text.chat_template import ChatTemplate, of_tokenizer
from tests.engine.text.vocabularies import GOLDEN, demo, demo_metadata, sentencepiece


def _demo_without_eos(*more: str) -> tokenizer.Tokenizer:
    metadata = {key: value for key, value in demo_metadata().items() if key != "tokenizer.ggml.eos_token_id"}
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *more]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[3] * len(more)]
    return tokenizer.from_gguf(metadata)


def test_what_a_checkpoint_names() -> None:
    assert stop_ids.find(demo(), None) == {2}
    assert stop_ids.find(demo(), None, (0, 7), (9,)) == {0, 2, 7, 9}
    assert stop_ids.find(tokenizer.from_folder(GOLDEN), None) == {1}
    ends = tokenizer.from_gguf({**demo_metadata(), "tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 5})
    assert stop_ids.find(ends, None) == {2, 4, 5}


def test_the_end_marker_of_a_template_is_found_by_rendering() -> None:
    known = _demo_without_eos()
    assert stop_ids.find(known, None) == frozenset()
    assert stop_ids.find(known, of_tokenizer(known)) == {2}


def test_end_markers_of_other_families() -> None:
    known = _demo_without_eos("<|eot_id|>", "<end_of_turn>", "<|header|>")
    llama = "{% for m in messages %}<|header|>{{ m.role }}\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    gemma = "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    assert stop_ids.find(known, ChatTemplate(llama)) == {49152}
    assert stop_ids.find(known, ChatTemplate(gemma)) == {49153}
    mistral = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"  # noqa: E501
    assert stop_ids.find(sentencepiece(), ChatTemplate(mistral, eos="</s>")) == {2}


def test_ordinary_text_after_an_answer_is_no_end_marker() -> None:
    known = _demo_without_eos()
    for after in ("\\n\\n", "\\nUser:", " END<|im_end|>"):
        template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ '" + after + "' }}{% endfor %}")
        assert stop_ids.find(known, template) == frozenset(), after
    assert stop_ids.find(known, ChatTemplate("{{ messages[0].content }}<|im_end|>")) == frozenset()
    assert stop_ids.find(known, ChatTemplate("{{ raise_exception('no') }}")) == frozenset()
    assert stop_ids.find(known, ChatTemplate(None)) == frozenset()
