"""The line chat: reads a message, shows the reply, keeps the conversation; an error never ends it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dspark_cli import interruption, slash_commands
from dspark_cli.console import Console
from dspark_cli.conversation import Conversation
from dspark_cli.errors import DsparkError
from dspark_cli.events import Event
from dspark_cli.reply_view import Reply, ReplySettings, Splitter, TextView, ending_in_words, events_of
from dspark_cli.slash_commands import Command

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine


class MessageSource(Protocol):
    """Where messages come from.

    ``read`` raises EOFError at the end and KeyboardInterrupt on Ctrl-C. A line is acted on within ``busy``, with
    ``poll`` called now and then.
    """

    def read(self) -> str: ...

    def busy(self) -> AbstractContextManager[None]: ...

    def poll(self) -> None: ...


class Repl:
    """One chat on a terminal.

    Args:
        engine: makes the replies.
        settings: how each reply is made; its seed grows by one with each, so that /regen draws anew.
        console: shows them.
        source: brings the messages.
        splitter: makes what tells reasoning and answer apart, given whether the reply starts in reasoning.
        system: the system prompt; None leaves it to the chat template.
        stats: end each reply with its numbers.
        debug: show the traceback of an error.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ReplySettings,
        console: Console,
        source: MessageSource,
        splitter: Callable[[bool], Splitter],
        *,
        system: str | None = None,
        stats: bool = False,
        debug: bool = False,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._console = console
        self._source = source
        self._splitter = splitter
        self._stats = stats
        self._debug = debug
        self._conversation = Conversation(system=system)
        self._replies = 0
        self._last: Reply | None = None

    def run(self) -> None:
        """Read and answer until the user leaves."""
        while True:
            try:
                line = self._source.read()
            except EOFError:
                self._console.tell("")
                return
            except KeyboardInterrupt:
                interruption.forget()
                self._console.tell("")
                self._console.say("Ctrl-D or /exit leaves the chat.")
                continue
            except UnicodeDecodeError:
                self._console.error("that line was not valid text in the terminal's encoding and was not sent")
                continue
            with self._source.busy():
                stays = self._take(line)
            if not stays:
                return

    def _take(self, line: str) -> bool:
        """Do what ``line`` says; False if that is to leave. Errors are told and end nothing."""
        try:
            said = slash_commands.read(line)
            if isinstance(said, Command):
                return self._obey(said)
            if said.strip():
                self._conversation.add_user(said)
                self._answer()
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            interruption.forget()
            self._console.tell("")
        except DsparkError as error:
            self._tell_error(str(error))
        except Exception as error:
            self._tell_error(f"the reply failed ({type(error).__name__}: {error})")
        return True

    def _tell_error(self, sentence: str) -> None:
        self._console.fresh_line()
        if self._debug:
            self._console.tell(traceback.format_exc().rstrip())
        self._console.error(sentence)

    def _obey(self, command: Command) -> bool:
        if command.name == "/exit":
            return False
        if command.name == "/help":
            self._console.tell(slash_commands.help_text())
        elif command.name == "/reset":
            self._conversation.reset()
            self._console.say("The conversation begins anew.")
        elif command.name == "/system":
            self._system(command.argument)
        elif command.name == "/stats":
            self._console.tell(self._last.summary.stats_line() if self._last else "There is no reply yet.")
        elif command.name == "/regen":
            self._regenerate()
        return True

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
            self._console.say("The system prompt is set from the next message on.")
        else:
            system = self._conversation.system
            self._console.tell("The chat template's own system prompt is in force." if system is None else system)

    def _regenerate(self) -> None:
        before = list(self._conversation.messages)
        if not self._conversation.drop_last_reply():
            self._console.say("There is no reply to make anew.")
            return
        if self._settings.sampling.greedy:
            self._console.say("Temperature 0 always gives the same reply; start with --temperature to vary it.")
        try:
            self._answer()
        finally:
            if not self._conversation.messages or self._conversation.messages[-1].role == "user":
                self._conversation.messages[:] = before

    def _answer(self) -> None:
        """Reply to the newest message; what came is kept, and a message that got nothing is taken back."""
        conversation, settings = self._conversation, self._settings
        left_out = conversation.left_out
        view: TextView | None = None
        try:
            # No more than a quarter of the context is held free for the reply: the conversation is worth more.
            reserve = min(settings.max_new_tokens, max(self._engine.context_length // 4, 1))
            prompt = self._engine.prompt(conversation, think=settings.think, reserve=reserve)
            if prompt.left_out > left_out:
                self._console.say(f"(the context is full: the {prompt.left_out} oldest messages are left out)")
            view = TextView(self._console, self._splitter(prompt.starts_in_reasoning))
            seed = (settings.sampling.seed + self._replies) % 2**63
            self._replies += 1
            varied = replace(settings, sampling=replace(settings.sampling, seed=seed))
            view.show(self._polling(events_of(self._engine, prompt, varied)), self._engine.cancel)
        finally:
            self._keep(view.reply if view else Reply())

    def _polling(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            self._source.poll()
            yield event

    def _keep(self, reply: Reply) -> None:
        if reply.answer or reply.reasoning:
            self._last = reply
            self._conversation.add_assistant(reply.answer, reply.reasoning)
            self._console.end_answer()
        elif reply.ended in ("", "cancelled"):
            self._conversation.take_back_user()
            if reply.ended:
                self._console.say("(stopped before a word came; the message is taken back)")
            return
        else:
            self._conversation.add_assistant("")
            self._console.say("(the reply is empty)")
        if words := ending_in_words(reply, self._settings.max_new_tokens):
            self._console.say(words)
        if self._stats:
            self._console.tell(reply.summary.stats_line())
