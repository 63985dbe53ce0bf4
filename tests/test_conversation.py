from __future__ import annotations

from dspark_cli.conversation import Conversation, Message


def chat() -> Conversation:
    conversation = Conversation(system="Be kind.")
    conversation.add_user("one")
    conversation.add_assistant("two", reasoning="because")
    conversation.add_user("three")
    conversation.add_assistant("four")
    return conversation


def test_reasoning_is_kept_but_never_goes_back_into_the_prompt() -> None:
    conversation = chat()
    assert conversation.messages[1] == Message("assistant", "two", "because")
    assert conversation.template_messages() == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
    ]


def test_no_system_prompt_differs_from_an_empty_one() -> None:
    conversation = Conversation()
    conversation.add_user("one")
    assert conversation.template_messages() == [{"role": "user", "content": "one"}]
    conversation.system = ""
    assert conversation.template_messages()[0] == {"role": "system", "content": ""}


def test_the_oldest_messages_can_be_left_out_but_not_the_system_prompt() -> None:
    conversation = chat()
    conversation.left_out = 2
    assert [m["content"] for m in conversation.template_messages()] == ["Be kind.", "three", "four"]
    assert [m["content"] for m in conversation.template_messages(0)] == ["Be kind.", "one", "two", "three", "four"]


def test_regenerating_drops_the_reply_and_keeps_the_question() -> None:
    conversation = chat()
    assert conversation.drop_last_reply()
    assert conversation.last_user == "three"
    assert conversation.unanswered
    assert conversation.drop_last_reply()
    assert conversation.last_user == "three"
    assert not Conversation().drop_last_reply()


def test_editing_replaces_the_question_and_drops_its_reply() -> None:
    conversation = chat()
    assert conversation.edit_last("other")
    assert [m.content for m in conversation.messages] == ["one", "two", "other"]
    assert not Conversation().edit_last("other")


def test_an_unanswered_message_can_be_taken_back() -> None:
    conversation = chat()
    assert conversation.take_back_user() is None
    conversation.add_user("five")
    assert conversation.take_back_user() == "five"
    assert conversation.messages == chat().messages


def test_reset_keeps_the_system_prompt() -> None:
    conversation = chat()
    conversation.left_out = 2
    conversation.reset()
    assert (conversation.system, conversation.messages, conversation.left_out) == ("Be kind.", [], 0)
    assert conversation.last_user is None
    assert not conversation.unanswered


def test_the_count_of_left_out_messages_stays_inside_the_conversation() -> None:
    conversation = chat()
    conversation.left_out = 2
    conversation.drop_last_reply()
    assert conversation.left_out == 2
    conversation.take_back_user()
    assert conversation.left_out <= len(conversation.messages)
