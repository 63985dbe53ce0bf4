from __future__ import annotations

from datetime import datetime

import pytest

from dspark_cli.engine.text.chat_template import ChatTemplate, of_tokenizer, opens_reasoning
from dspark_cli.errors import CheckpointError, DsparkError
from tests.engine.text.vocabularies import demo, transformers_demo

ASK = [{"role": "user", "content": "What is the capital of France?"}]
# The thinking switch as Qwen3 has it.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_the_demo_brings_its_own_system_prompt() -> None:
    assert of_tokenizer(demo()).render(ASK) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    own = of_tokenizer(demo()).render([{"role": "system", "content": ""}, *ASK])
    assert own.startswith("<|im_start|>system\n<|im_end|>\n")


def test_rendering_equals_transformers() -> None:
    theirs = transformers_demo()
    tricky = (
        "{%- for m in messages %}\n    {%- if loop.index0 == 3 %}{% continue %}{% endif %}\n"
        "    {% if m.role == 'user' %}\n{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}\n    {% else %}\n"
        "{% generation %}{{ m['content'] | trim + eos_token }}{% endgeneration %}\n{% endif %}\n{% endfor %}\n"
        "{{ messages[0] | tojson }} {{ {'b': 'é<', 'a': 1} | tojson(indent=2) }}"
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
        "{{ strftime_now('%Y') }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    messages = [*ASK, {"role": "assistant", "content": "  Paris. "}, {"role": "user", "content": "é & <b>"}, *ASK]
    ours = ChatTemplate(tricky, "<|im_start|>", "<|im_end|>").render(messages)
    assert ours == theirs.apply_chat_template(
        messages, chat_template=tricky, tokenize=False, add_generation_prompt=True
    )
    assert str(datetime.now().year) in ours
    for chat in (ASK, messages):
        ours = of_tokenizer(demo()).render(chat)
        assert ours == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True).input_ids
        assert demo().encode(ours, special=True) == ids


def test_several_templates_by_name() -> None:
    assert ChatTemplate({"tool_use": "t", "default": "d"}).render(ASK) == "d"
    assert ChatTemplate({"only": "o"}).render(ASK) == "o"
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTemplate({"a": "1", "b": "2"}).render(ASK)


def test_a_model_without_a_template_says_so_only_when_asked_to_render() -> None:
    template = ChatTemplate(None)
    assert not template.supports_thinking
    with pytest.raises(CheckpointError, match=r"no chat template: use --raw"):
        template.render(ASK)


def test_a_template_that_is_not_valid() -> None:
    template = ChatTemplate("{% if %}")
    with pytest.raises(CheckpointError, match="is not valid") as caught:
        template.render(ASK)
    assert "\n" not in str(caught.value)


def test_what_a_template_refuses_is_told_in_its_own_words() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{{ messages[0].content.nothing.at_all }}"
    )
    with pytest.raises(DsparkError, match=r"System role not supported.*leave the system prompt out"):
        ChatTemplate(source).render([{"role": "system", "content": "x"}, *ASK])
    with pytest.raises(DsparkError, match="refuses this conversation") as caught:
        ChatTemplate(source).render(ASK)
    assert "system prompt" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_templates_stay_in_their_sandbox(source: str) -> None:
    with pytest.raises(DsparkError):
        ChatTemplate(source).render(ASK)


def test_the_thinking_switch() -> None:
    template = ChatTemplate(THINKING)
    assert template.supports_thinking
    assert template.switches_thinking
    assert template.render(ASK).endswith("assistant\n")
    assert template.render(ASK, think=True).endswith("assistant\n")
    assert template.render(ASK, think=False).endswith("<think>\n\n</think>\n\n")
    always = ChatTemplate("{{ messages[0].content }}{{ '<think>\n' }}")
    assert always.supports_thinking
    assert not always.switches_thinking
    assert not of_tokenizer(demo()).supports_thinking


def test_a_prompt_that_opens_the_reasoning() -> None:
    assert opens_reasoning("<|assistant|>\n<think>\n")
    assert not opens_reasoning(ChatTemplate(THINKING).render(ASK, think=False))
    assert not opens_reasoning("what does <think> mean?<|assistant|>")
