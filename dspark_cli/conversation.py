"""A conversation: who said what, and what of it goes into the next prompt."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Message:
    """One turn of one speaker. ``role`` is ``user`` or ``assistant``; ``reasoning`` is shown, never sent back."""

    role: str
    content: str
    reasoning: str = ""


@dataclass
class Conversation:
    """Messages in the order they were said, and the system prompt apart from them.

    ``system`` None leaves it to the chat template, which may bring one of its own; an empty one is sent as such.
    ``left_out`` counts the oldest messages that no longer go into the prompt because the context is full.
    """

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    left_out: int = 0

    def add_user(self, content: str) -> None:
        self.messages.append(Message("user", content))

    def add_assistant(self, content: str, reasoning: str = "") -> None:
        self.messages.append(Message("assistant", content, reasoning))

    @property
    def last_user(self) -> str | None:
        """The newest user message, or None while there is none."""
        index = self._last_user_index()
        return None if index is None else self.messages[index].content

    @property
    def unanswered(self) -> bool:
        """Whether the newest message waits for a reply."""
        return bool(self.messages) and self.messages[-1].role == "user"

    def edit_last(self, content: str) -> bool:
        """Say the newest user message differently; what came after it goes. False if there is none."""
        index = self._last_user_index()
        if index is None:
            return False
        self.messages[index:] = [replace(self.messages[index], content=content)]
        self._keep_count_true()
        return True

    def drop_last_reply(self) -> bool:
        """Take the newest reply back, so that it can be made anew. False if no user message would be left to answer."""
        index = self._last_user_index()
        if index is None:
            return False
        del self.messages[index + 1 :]
        self._keep_count_true()
        return True

    def take_back_user(self) -> str | None:
        """Remove a newest user message that got no reply and return it; None if there is none."""
        if not self.unanswered:
            return None
        content = self.messages.pop().content
        self._keep_count_true()
        return content

    def reset(self) -> None:
        """Forget every message; the system prompt stays."""
        self.messages.clear()
        self.left_out = 0

    def template_messages(self, left_out: int | None = None) -> list[dict[str, str]]:
        """What a chat template is given: the system prompt and the messages after the ``left_out`` oldest ones."""
        first = self.left_out if left_out is None else left_out
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return head + [{"role": m.role, "content": m.content} for m in self.messages[first:]]

    def _last_user_index(self) -> int | None:
        return next((i for i in range(len(self.messages) - 1, -1, -1) if self.messages[i].role == "user"), None)

    def _keep_count_true(self) -> None:
        self.left_out = min(self.left_out, max(len(self.messages) - 1, 0))
