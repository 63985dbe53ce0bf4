"""How help looks: options under headings, examples as they are typed, no markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from dspark_cli.commands.parser_errors import ParserError, plainly

if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object

_OWN_HEADING = "Options"


class HelpPage(_Base):
    """Help of a click command, free of what the typer release at hand makes of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except ParserError as error:
            raise plainly(error, ctx.command_path, given) from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.help or "")
        self._format_examples(formatter)
        for heading, rows in self.sections(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows)
        self.format_epilog(ctx, formatter)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(f"[{_metavar(param)}]")
        return pieces

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Rows of (how it is typed, what it means) by heading; the command's own options first, --help last."""
        arguments: list[tuple[str, str]] = []
        grouped: dict[str, list[tuple[str, str]]] = {_OWN_HEADING: []}
        last = []
        parameters: list[Any] = list(self.get_params(ctx))
        for param in parameters:
            if getattr(param, "hidden", False):
                continue
            if param.param_type_name == "argument":
                arguments.append((_metavar(param), param.help or ""))
            elif param.name in ("help", "install_completion", "show_completion", "debug", "version"):
                last.append(_row(param))
            else:
                grouped.setdefault(getattr(param, "rich_help_panel", None) or _OWN_HEADING, []).append(_row(param))
        grouped["Help"] = last
        found = {"Arguments": arguments, **grouped}
        return {heading: rows for heading, rows in found.items() if rows}

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples stand above, so nothing follows."""

    def _format_examples(self, formatter: Any) -> None:
        if not self.epilog:
            return
        with formatter.section("Examples"):
            for line in self.epilog.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class VerbCommand(HelpPage, TyperCommand):
    """One verb."""


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _row(param: Any) -> tuple[str, str]:
    names = sorted(param.opts, key=lambda name: name.startswith("--"))
    typed = ", ".join(names)
    if param.secondary_opts:
        typed = f"{typed} / {', '.join(param.secondary_opts)}"
    elif not getattr(param, "is_flag", False) and param.metavar:
        typed = f"{typed} {param.metavar}"
    return typed, (param.help or "").strip()
