"""Imports point down only: the table below against every import statement of the tree, read with ``ast``."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TORCH = frozenset({"torch"})
TERMINAL = frozenset({"typer", "click", "rich"})
FORMATS = frozenset({"torch", "numpy", "gguf", "safetensors", "tokenizers", "jinja2"})
EVERYWHERE = "dspark_cli"  # the package itself: its __init__ holds the version and imports nothing


@dataclass(frozen=True)
class Layer:
    """A row of the table. Members and targets are modules or packages, dotted, without ``dspark_cli.``.

    ``below`` may be imported at the top of a file, ``inside`` only within a function or under TYPE_CHECKING,
    ``typed`` only under TYPE_CHECKING. ``libraries`` and ``lazy_libraries`` are third-party packages for the top
    and for functions. Members of one layer see one another only where ``together``; a package always sees itself.
    """

    name: str
    members: tuple[str, ...]
    below: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    lazy_libraries: frozenset[str] = frozenset()
    together: bool = False


LAYERS = (
    Layer("words", ("errors", "events", "paths", "conversation", "interruption", "type_ahead")),
    Layer(
        "records",
        ("trace", "settings", "console", "line_reader", "slash_commands", "catalog"),
        below=("words",),
        libraries=frozenset({"tomli"}),
        lazy_libraries=frozenset({"huggingface_hub"}),
    ),
    Layer("kernels", ("dspark_kernels",), libraries=TORCH),
    Layer(
        "nouns",
        tuple(
            f"engine.{name}"
            for name in (
                "contracts", "model_config", "sequence", "layers", "kv_cache", "sampling", "token_filters",
                "acceptance", "stopping",
            )
        ),
        below=("words", "kernels"),
        libraries=TORCH | {"numpy"},
        together=True,
    ),
    Layer(
        "siblings",
        tuple(f"engine.{name}" for name in ("text", "checkpoints", "targets", "drafters")),
        below=("words", "kernels", "nouns"),
        libraries=FORMATS,
        lazy_libraries=frozenset({"pynvml", "llama_cpp"}),
    ),
    Layer("scheduler", ("engine.scheduler",), below=("words", "nouns")),  # a sibling too: floats in, Plan out
    Layer(
        "conductor",
        tuple(f"engine.{name}" for name in ("round", "decode_loop", "pairing", "device")),
        below=("words", "records", "kernels", "nouns"),
        libraries=TORCH,
        together=True,
    ),
    Layer(
        "door",  # alone joins siblings
        ("engine.engine", "engine.loading"),
        below=("words", "records", "kernels", "nouns", "siblings", "scheduler", "conductor"),
        libraries=TORCH,
        together=True,
    ),
    Layer(
        "work",
        ("training", "bench"),
        below=("words", "records", "kernels", "nouns", "siblings", "scheduler", "conductor", "door"),
        libraries=TORCH | {"numpy", "safetensors"},
        lazy_libraries=frozenset({"transformers", "matplotlib"}),
        together=True,
    ),
    Layer("view", ("reply_view",), below=("words", "records"), typed=("nouns", "door")),
    Layer(
        "faces",
        ("repl", "tui"),
        below=("words", "records", "view"),
        typed=("nouns", "door"),
        libraries=TERMINAL | {"textual"},
    ),
    Layer(
        "verbs",
        ("commands", "__main__"),
        below=("words", "records"),
        inside=("kernels", "nouns", "siblings", "scheduler", "conductor", "door", "work", "view", "faces"),
        libraries=TERMINAL,
        lazy_libraries=TORCH | {"transformers"},
        together=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    line: int
    target: str  # dotted, as imported
    place: str  # "top" of the file, "function", or "typing": under TYPE_CHECKING


def member_of(module: str) -> tuple[Layer, str] | None:
    """The layer of a dotted module of ours, and the member that it is or lies in."""
    name = module.removeprefix("dspark_cli.")
    for layer in LAYERS:
        for member in layer.members:
            if name == member or name.startswith(member + "."):
                return layer, member
    return None


def is_ours(target: str) -> bool:
    return target.split(".")[0] in ("dspark_cli", "dspark_kernels")


def imports(source: str, package: str) -> list[Import]:
    """Every import of a file that lies in ``package``, relative ones made absolute."""
    found: list[Import] = []

    def visit(node: ast.AST, place: str) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(node.lineno, alias.name, place) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from package import name` may name a module: both are looked at.
            found.extend(Import(node.lineno, f"{base}.{alias.name}", place) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for statement in node.body:
                visit(statement, "typing")
            for statement in node.orelse:
                visit(statement, place)
            return
        if place == "top" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            place = "function"
        for child in ast.iter_child_nodes(node):
            visit(child, place)

    visit(ast.parse(source), "top")
    return found


def complaint(module: str, item: Import) -> str | None:
    """Why ``module`` may not hold this import, or None."""
    place = member_of(module)
    if place is None:
        return "stands in no layer of the table"
    layer, member = place
    late = item.place != "top"
    where = "" if late else " at the top of a file"
    if not is_ours(item.target):
        library = item.target.split(".")[0]
        allowed = sys.stdlib_module_names | layer.libraries | (layer.lazy_libraries if late else frozenset())
        triton = layer.name == "kernels" and library == "triton" and not module.endswith("_reference")
        return None if library in allowed or triton else f"imports {library}{where}: not for {layer.name}"
    other = member_of(item.target)
    if other is None:
        version = item.target == "dspark_cli.__version__"
        return None if version else f"imports {item.target}, which stands in no layer"
    layer_below, member_below = other
    if member_below == member or (layer_below is layer and layer.together):
        return None
    allowed_layers = layer.below + (layer.inside if late else ()) + (layer.typed if item.place == "typing" else ())
    return None if layer_below.name in allowed_layers else f"imports {item.target}{where}: not for {layer.name}"


def modules() -> dict[str, Path]:
    """Every module of the tree by dotted name; a package stands for its ``__init__``."""
    found = {}
    for base, package in ((ROOT, "dspark_cli"), (ROOT / "kernels", "dspark_kernels")):
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_every_member_of_the_table_exists() -> None:
    there = {name.removeprefix("dspark_cli.") for name in modules()}
    assert [member for layer in LAYERS for member in layer.members if member not in there] == []


def package_of(module: str, path: Path) -> str:
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def complaints(module: str, package: str, source: str) -> list[str]:
    found = ((item, complaint(module, item)) for item in imports(source, package))
    return [f"{module}:{item.line} {reason}" for item, reason in found if reason]


@pytest.mark.parametrize(("module", "path"), modules().items(), ids=lambda value: value if type(value) is str else "")
def test_imports_point_down(module: str, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if module in (EVERYWHERE, "dspark_cli.engine"):
        assert imports(source, module) == [], "the package itself imports nothing"
        return
    assert member_of(module), f"{module} stands in no layer of the table"
    assert complaints(module, package_of(module, path), source) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dspark_cli.events", "import torch"),
        ("dspark_cli.events", "from dspark_cli.errors import DsparkError"),
        ("dspark_cli.trace", "from dspark_cli.engine.contracts import Plan"),
        ("dspark_cli.catalog.hub", "import huggingface_hub"),
        ("dspark_kernels.rms_norm", "from dspark_cli.errors import DsparkError"),
        ("dspark_kernels.rms_norm_reference", "import triton.language as tl"),
        ("dspark_cli.engine.sampling", "from .targets import transformer"),
        ("dspark_cli.engine.drafters.dspark", "from ..targets.transformer import Transformer"),
        ("dspark_cli.engine.scheduler.fixed", "def plan():\n    import torch"),
        ("dspark_cli.engine.scheduler.fixed", "from dspark_cli.engine.drafters.dspark import Dspark"),
        ("dspark_cli.engine.round", "from dspark_cli.engine.engine import Engine"),
        ("dspark_cli.engine.round", "from dspark_cli.engine.drafters.dspark import Dspark"),
        ("dspark_cli.repl", "from dspark_cli.engine.engine import Engine"),
        ("dspark_cli.repl", "def start():\n    from dspark_cli.engine.engine import Engine"),
        ("dspark_cli.repl", "def start():\n    from dspark_cli.tui.app import App"),
        ("dspark_cli.commands.chat", "if True:\n    from dspark_cli.engine.engine import Engine"),
        ("dspark_cli.commands.chat", "from dspark_cli import repl"),
        ("dspark_cli.commands.chat", "class Chat:\n    import torch"),
        ("dspark_cli.helper", "import os"),
        ("dspark_cli.trace", "from dspark_cli import helper"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert complaints(module, module.rpartition(".")[0], source) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dspark_cli.catalog.hub", "def pull():\n    import huggingface_hub"),
        ("dspark_cli.trace", "from dspark_cli import __version__\nfrom dspark_cli.events import Round"),
        ("dspark_kernels.rms_norm", "import triton\nfrom . import rms_norm_reference"),
        ("dspark_cli.engine.drafters.dspark", "from .markov_head import MarkovHead\nfrom ..layers import Attention"),
        ("dspark_cli.engine.engine", "from dspark_cli.engine.checkpoints import hf_folder"),
        ("dspark_cli.repl", "if TYPE_CHECKING:\n    from dspark_cli.engine.engine import Engine"),
        ("dspark_cli.commands.chat", "import typer\ndef chat():\n    from dspark_cli import repl"),
    ],
)
def test_a_right_import_is_let_through(module: str, source: str) -> None:
    assert complaints(module, module.rpartition(".")[0], source) == []
