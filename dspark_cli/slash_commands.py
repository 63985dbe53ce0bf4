"""The /commands of a chat: their names, what they do in a sentence, and how a line is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dspark_cli.errors import UsageError, nearest


@dataclass(frozen=True)
class SlashCommand:
    """One command: its name with the slash, its argument for the help (empty where it takes none), a sentence."""

    name: str
    argument: str
    sentence: str


COMMANDS = (
    SlashCommand("/help", "", "Show these lines."),
    SlashCommand("/system", "[TEXT]", "Show the system prompt, or set it from the next message on."),
    SlashCommand("/regen", "", "Make the last reply anew."),
    SlashCommand("/stats", "", "Show speed, accepted length and schedule of the last reply."),
    SlashCommand("/reset", "", "Forget the conversation; the system prompt stays."),
    SlashCommand("/exit", "", "Leave (so does Ctrl-D)."),
)
ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help", "/clear": "/reset"}
NAMES = (*(command.name for command in COMMANDS), *ALIASES)

_SHAPE = re.compile(r"(/[\w?-]+|/(?=\s*\Z))(?:\s+(.*))?", re.ASCII)


@dataclass(frozen=True)
class Command:
    """A command as it was typed."""

    name: str
    argument: str = ""


def read(line: str) -> Command | str:
    """The command that ``line`` gives, or the message that it is (two slashes at its start stand for one).

    What has several lines was pasted, and is a message as it stands.

    Raises:
        UsageError: it looks like a command and is none.
    """
    if _has_lines(line):
        return line
    if line.startswith("//"):
        return line[1:]
    found = _shaped(line)
    if isinstance(found, str):
        near = nearest(found, NAMES) if found != "/" else ""
        hint = f"did you mean {near}?" if near else "/help shows the commands"
        raise UsageError(f"there is no command {found}", f"{hint} (a message that begins with a slash needs two)")
    return found if found is not None else line


def _shaped(line: str) -> Command | str | None:
    """A known command, the name of an unknown one, or None for a message."""
    match = _SHAPE.fullmatch(line.strip())
    if match is None or line.startswith("//") or _has_lines(line):
        return None
    name = ALIASES.get(match[1].lower(), match[1].lower())
    if name not in NAMES:
        return match[1]
    argument = (match[2] or "").strip()
    takes_argument = any(command.name == name and command.argument for command in COMMANDS)
    # A command with words after it that it does not take was not meant as one: "/exit is what I type to leave".
    return Command(name, argument) if takes_argument or not argument else None


def _has_lines(text: str) -> bool:
    return "\n" in text.strip()


def help_text() -> str:
    """The lines of /help."""
    width = max(len(f"{command.name} {command.argument}") for command in COMMANDS)
    lines = [f"  {f'{command.name} {command.argument}':<{width}}  {command.sentence}" for command in COMMANDS]
    lines.append("Ctrl-C stops a reply and keeps what came; a pasted text of many lines is one message.")
    return "\n".join(lines)
