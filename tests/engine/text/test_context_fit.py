from __future__ import annotations

import pytest

from dspark_cli.conversation import Conversation
from dspark_cli.engine.text.chat_template import ChatTemplate, of_tokenizer
from dspark_cli.engine.text.context_fit import Fit, fit_conversation
from dspark_cli.errors import ContextError
from tests.engine.text.vocabularies import demo


def fit(conversation: Conversation, limit: int, reserve: int = 0) -> Fit:
    return fit_conversation(demo(), of_tokenizer(demo()), conversation, limit=limit, reserve=reserve)


def chat(turns: int, system: str | None = "Be kind.") -> Conversation:
    conversation = Conversation(system=system)
    for turn in range(turns):
        conversation.add_user(f"question {turn} " + "word " * 20)
        conversation.add_assistant(f"answer {turn} " + "word " * 20)
    conversation.add_user("the newest question")
    return conversation


def test_what_fits_is_left_alone() -> None:
    conversation = chat(3)
    whole = demo().encode(of_tokenizer(demo()).render(conversation.template_messages()), special=True)
    assert fit(conversation, len(whole)) == Fit(whole, 0, False)
    assert fit(conversation, len(whole) + 7, 7).left_out == 0
    assert fit(conversation, len(whole) + 6, 7).left_out > 0


@pytest.mark.parametrize("limit", [60, 101, 200, 333])
def test_whole_turns_go_oldest_first(limit: int) -> None:
    conversation = chat(12)
    fitted = fit(conversation, limit)
    assert len(fitted.ids) <= limit
    assert fitted.left_out == conversation.left_out > 0
    assert conversation.messages[fitted.left_out].role == "user"
    text = demo().decode(fitted.ids)
    assert "Be kind." in text
    assert "the newest question" in text
    assert "question 0 " not in text
    kept = [turn for turn in range(12) if f"question {turn} " in text]
    assert kept == list(range(fitted.left_out // 2, 12))


def test_a_little_more_than_needed_goes_so_that_the_next_turns_begin_alike() -> None:
    conversation = chat(30)
    limit, before, moved, turns = 600, [0], 0, 24
    for turn in range(turns):
        fitted = fit(conversation, limit, reserve=50)
        assert len(fitted.ids) <= limit - 50
        shared = next((i for i, (a, b) in enumerate(zip(before, fitted.ids, strict=False)) if a != b), len(before))
        moved += shared < len(before) - 1
        before = fitted.ids
        conversation.add_assistant("answer " + "word " * 20)
        conversation.add_user(f"and question {turn} " + "word " * 20)
    assert 1 < moved <= turns // 2  # anew at every turn without the slack


def test_left_out_turns_stay_out() -> None:
    conversation = chat(12)
    first = fit(conversation, 200).left_out
    assert fit(conversation, 10_000).left_out == first
    conversation.reset()
    conversation.add_user("new")
    assert fit(conversation, 200).left_out == 0


def test_a_long_newest_message_still_keeps_what_fits_beside_it() -> None:
    conversation = Conversation(system="")
    conversation.add_user("old")
    conversation.add_assistant("older " * 30)
    conversation.add_user("near")
    conversation.add_assistant("yes")
    conversation.add_user("word " * 80)
    fitted = fit(conversation, 110)
    assert fitted.left_out == 2
    assert "near" in demo().decode(fitted.ids)


def test_a_newest_message_that_cannot_fit_is_told_with_both_numbers() -> None:
    conversation = chat(2)
    conversation.messages[-1:] = []
    conversation.add_user("word " * 300)
    with pytest.raises(ContextError, match=r"prompt of 3\d\d tokens, but the context of 100 leaves room for 80") as e:
        fit(conversation, 100, 20)
    assert "--context-length" in str(e.value)
    assert conversation.left_out == 0
    with pytest.raises(ContextError, match="leaves room for 0"):
        fit(chat(0), 100, 200)


def test_a_prompt_that_opens_the_reasoning_says_so() -> None:
    template = ChatTemplate("{{ messages[-1].content }}<|im_end|>{% if think is not defined %}<think>\n{% endif %}")
    conversation = Conversation()
    conversation.add_user("hm")
    fitted = fit_conversation(demo(), template, conversation, limit=50, reserve=0)
    assert fitted.opens_reasoning
    assert fitted.ids[-1] != 2
