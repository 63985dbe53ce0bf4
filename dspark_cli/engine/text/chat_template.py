"""The chat template of a checkpoint: messages in, prompt text out. Templates are untrusted code, so in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspark_cli.engine.text.tokenizer import Template, Tokenizer
from dspark_cli.errors import CheckpointError, DsparkError

_THINK_VARIABLES = frozenset({"enable_thinking", "thinking"})


class ChatTemplate:
    """One template. Where there is none, or one that is not valid, only :meth:`render` fails: raw prompts need none.

    ``supports_thinking``: the model can reason before it answers; ``switches_thinking``: the template also lets the
    user choose whether it does.
    """

    def __init__(self, source: Template, bos: str = "", eos: str = "", **named: str) -> None:
        """``source`` is a template, or several by name, of which ``default`` is taken (or the only one)."""
        self.source = _choose(source)
        self._named = {**named, "bos_token": bos, "eos_token": eos}
        self._template: jinja2.Template | None = None
        self._fault = "the model has no chat template"
        variables: set[str] = set()
        if self.source:
            environment = _environment()
            try:
                self._template = environment.from_string(self.source)
                variables = meta.find_undeclared_variables(environment.parse(self.source))
            except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
                self._fault = f"the model's chat template is not valid ({_line(error)})"
        self.switches_thinking = bool(_THINK_VARIABLES & variables)
        self.supports_thinking = self.switches_thinking or "<think>" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        think: bool | None = None,
    ) -> str:
        """The prompt text of ``messages`` (``role`` and ``content`` each).

        ``think`` None leaves it to the template whether the model reasons.

        Raises:
            CheckpointError: there is no template, or it is not valid.
            DsparkError: the template refuses these messages.
        """
        if self._template is None:
            raise CheckpointError(self._fault, "use --raw for a plain prompt, or another model")
        switch = {} if think is None else dict.fromkeys(_THINK_VARIABLES, think)
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._named,
                **switch,
            )
        except Exception as error:  # a template may fail in any way that an expression can
            way_out = "use --raw for a plain prompt"
            if any(message["role"] == "system" for message in messages):
                way_out = f"leave the system prompt out or {way_out}"
            raise DsparkError(
                f"the model's chat template refuses this conversation ({_line(error)})", way_out
            ) from error


def of_tokenizer(tokenizer: Tokenizer) -> ChatTemplate:
    """The template that came with ``tokenizer``, knowing the texts of its named tokens."""
    named = dict(tokenizer.named)
    return ChatTemplate(tokenizer.template, named.pop("bos_token", ""), named.pop("eos_token", ""), **named)


def opens_reasoning(rendered: str) -> bool:
    """Whether a rendered prompt ends inside the reasoning, so that the reply begins there."""
    return rendered.rstrip().endswith("<think>")


def _choose(source: Template) -> str:
    if isinstance(source, dict):
        source = source.get("default") or (next(iter(source.values())) if len(source) == 1 else None)
    return source or ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 - the attribute that jinja2 asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """An environment as transformers sets it up, since that is what templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter, which escapes characters for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
