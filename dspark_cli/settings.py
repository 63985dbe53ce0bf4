"""Every setting: its name, type, default and sentence; and where a value came from.

Flags win over the environment (``DSPARK_…``), that over the config file, that over the default.
One table serves the flags, the help, ``dspark config`` and the example file.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_cli.errors import UsageError, nearest

Value = str | int | float | bool | tuple[str, ...] | None

MODEL = "Model"
SAMPLING = "Sampling"
REPLY = "Reply"
SPECULATION = "Speculation"
MACHINE = "Machine"


@dataclass(frozen=True)
class Spec:
    """What one setting means.

    ``kind`` is ``text``, ``number``, ``count`` (a whole number), ``switch`` or ``list``; ``low`` and ``high`` bound
    the numbers (``low`` is excluded where ``above_low``). ``unset`` says what None stands for.
    """

    sentence: str
    group: str
    kind: str
    metavar: str
    unset: str = ""
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False
    pattern: str = ""
    words: str = ""
    example: Value = None

    @property
    def allowed(self) -> str:
        """The allowed values, to be read after 'must be'."""
        if self.words:
            return self.words
        if self.kind == "switch":
            return "true or false"
        if self.kind in ("text", "list"):
            return "text" if self.kind == "text" else "text or a list of texts"
        noun = "a whole number" if self.kind == "count" else "a number"
        if math.isinf(self.high):
            return f"{noun} above {self.low:g}" if self.above_low else f"{noun}, {self.low:g} or more"
        start = f"above {self.low:g} and at most" if self.above_low else f"from {self.low:g} to"
        return f"{noun} {start} {self.high:g}"


def _setting(default: Value, spec: Spec) -> Any:
    return dataclasses.field(default=default, metadata={"spec": spec})


@dataclass(frozen=True)
class Settings:
    """All settings with their values; the defaults are those of a fresh installation."""

    model: str | None = _setting(
        None,
        Spec(
            "The model to talk to: a folder, a .gguf file, a catalogue name, or an owner/repo of the Hugging Face hub.",
            MODEL, "text", "MODEL", "the demo model, smollm2-135m", pattern=r"(?s)(?!\s*\Z).+",
            words="a folder, a .gguf file, a catalogue name or an owner/repo", example="qwen3-4b",
        ),
    )  # fmt: skip
    drafter: str | None = _setting(
        None,
        Spec(
            "The drafter: a folder, a name, 'ngram' for prompt lookup, or 'none' for plain decoding.",
            MODEL, "text", "DRAFTER", "the catalogue's for this model if it is on disk, else ngram",
            pattern=r"(?s)(?!\s*\Z).+", words="a folder, a name, ngram or none", example="ngram",
        ),
    )  # fmt: skip
    temperature: float | None = _setting(
        None,
        Spec(
            "How freely to draw; 0 always takes the likeliest token.",
            SAMPLING, "number", "NUMBER", "the model's own", 0, example=0.7,
        ),
    )  # fmt: skip
    top_k: int | None = _setting(
        None,
        Spec(
            "Draw from the k likeliest tokens only; 0 means all.",
            SAMPLING, "count", "N", "the model's own", 0, 2**31 - 1, words="a whole number, 0 or more",
            example=40,
        ),
    )  # fmt: skip
    top_p: float | None = _setting(
        None,
        Spec(
            "Draw from the likeliest tokens that together reach this probability; 1 means all.",
            SAMPLING, "number", "NUMBER", "the model's own", 0, 1, above_low=True, example=0.9,
        ),
    )  # fmt: skip
    min_p: float | None = _setting(
        None,
        Spec(
            "Leave out tokens less likely than this share of the likeliest one; 0 means none.",
            SAMPLING, "number", "NUMBER", "the model's own", 0, 1, example=0.05,
        ),
    )  # fmt: skip
    repetition_penalty: float | None = _setting(
        None,
        Spec(
            "Make tokens of the prompt and the reply less likely; 1 means no penalty.",
            SAMPLING, "number", "NUMBER", "the model's own", 0, above_low=True, example=1.1,
        ),
    )  # fmt: skip
    presence_penalty: float | None = _setting(
        None,
        Spec(
            "Taken once from the logit of each token that the reply already holds.",
            SAMPLING, "number", "NUMBER", "the model's own", -2, 2, example=0.5,
        ),
    )  # fmt: skip
    frequency_penalty: float | None = _setting(
        None,
        Spec(
            "Taken from a token's logit for each time that the reply holds it.",
            SAMPLING, "number", "NUMBER", "the model's own", -2, 2, example=0.5,
        ),
    )  # fmt: skip
    seed: int | None = _setting(
        None,
        Spec(
            "The seed of all draws; the same seed repeats the same reply.",
            SAMPLING, "count", "N", "a new one each time", 0, 2**63 - 1, words="a whole number from 0 to 2^63 - 1",
            example=1,
        ),
    )  # fmt: skip
    max_new_tokens: int = _setting(
        1024,
        Spec("The most tokens that a reply may have.", REPLY, "count", "N", low=1),
    )
    stop: tuple[str, ...] = _setting(
        (),
        Spec(
            "End the reply before this text (may be given more than once).",
            REPLY, "list", "TEXT", "no stop text", example=("\n\n",),
        ),
    )  # fmt: skip
    system: str | None = _setting(
        None,
        Spec(
            "The system prompt that opens the conversation.",
            REPLY, "text", "TEXT", "the chat template's own", example="Answer in one sentence.",
        ),
    )  # fmt: skip
    think: bool | None = _setting(
        None,
        Spec(
            "Let a thinking model reason before it answers; the reasoning goes to standard error.",
            REPLY, "switch", "", "the model's own", example=False,
        ),
    )  # fmt: skip
    context_length: int | None = _setting(
        None,
        Spec("The most tokens of prompt and reply together.", REPLY, "count", "N", "the model's own", 2,
             example=4096),
    )  # fmt: skip
    schedule: str | None = _setting(
        None,
        Spec(
            "How much of each draft to verify: fixed:N, threshold:P (needs a confidence head), or off.",
            SPECULATION, "text", "RULE", "whole drafts, or off without a drafter",
            pattern=r"off|fixed:\d+|threshold:(0(\.\d*)?|1(\.0*)?|\.\d+)",
            words="fixed:N, threshold:P with P from 0 to 1, or off", example="fixed:4",
        ),
    )  # fmt: skip
    device: str = _setting(
        "auto",
        Spec(
            "Where to compute: auto, cpu, cuda, or cuda:N.",
            MACHINE, "text", "DEVICE", pattern=r"auto|cpu|cuda(:\d+)?", words="auto, cpu, cuda or cuda:N",
        ),
    )  # fmt: skip
    threads: int | None = _setting(
        None,
        Spec("CPU threads to compute with.", MACHINE, "count", "N", "one a core", 1, 1024, example=4),
    )
    weight_cache: bool = _setting(
        True,
        Spec("Keep the unpacked weights of a GGUF file on disk, so that the next start is quicker.",
             MACHINE, "switch", ""),
    )  # fmt: skip
    kernels: str = _setting(
        "auto",
        Spec(
            "Which kernels to use: auto, reference, onednn (float32 weights) or fbgemm (float16 weights).",
            MACHINE, "text", "SET", pattern="auto|reference|onednn|fbgemm", words="auto, reference, onednn or fbgemm",
        ),
    )  # fmt: skip


_OTHER_VARIABLES = ("DSPARK_DEBUG", "DSPARK_GOLDEN")  # tracebacks; the folder of the tests' reference data

DEFAULTS = Settings()
SPECS: Mapping[str, Spec] = {f.name: f.metadata["spec"] for f in dataclasses.fields(Settings)}


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return "DSPARK_" + name.upper()


def parse(name: str, text: str, where: str) -> Value:
    """The value that ``text`` (a flag's or a variable's) gives the setting ``name``.

    Raises:
        UsageError: the text is not an allowed value; the message begins with ``where``.
    """
    spec = SPECS[name]
    if spec.kind == "list":
        return (text,)
    try:
        value = _CONVERSIONS[spec.kind](text)
    except ValueError:
        raise UsageError(f"{where} must be {spec.allowed}, not {text!r}") from None
    return _checked(spec, value, where, text)


def check(name: str, value: object, where: str) -> Value:
    """``value`` as a config file gives it, if the setting ``name`` allows it.

    Raises:
        UsageError: it does not; the message begins with ``where``.
    """
    spec = SPECS[name]
    if spec.kind == "list":
        texts = value if isinstance(value, (list, tuple)) else [value]
        if all(isinstance(item, str) for item in texts):
            return tuple(texts)
    elif spec.kind == "text" and isinstance(value, str):
        return _checked(spec, value, where)
    elif spec.kind == "switch" and isinstance(value, bool):
        return value
    elif spec.kind == "count" and isinstance(value, int) and not isinstance(value, bool):
        return _checked(spec, value, where)
    elif spec.kind == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _checked(spec, float(value), where)
    raise UsageError(f"{where} must be {spec.allowed}, not {value!r}")


def _checked(spec: Spec, value: str | float | bool, where: str, typed: object = None) -> Value:
    """``value``, if it lies within the bounds; ``typed`` is how the user wrote it."""
    fits = True
    if isinstance(value, str):
        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{where} is not UTF-8 text", "convert it first, for example with iconv")
        fits = not spec.pattern or re.fullmatch(spec.pattern, value) is not None
    elif not isinstance(value, bool):
        fits = math.isfinite(value) and spec.low <= value <= spec.high
        fits = fits and not (spec.above_low and value == spec.low)
    if not fits:
        raise UsageError(f"{where} must be {spec.allowed}, not {value if typed is None else typed!r}")
    return value


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


_CONVERSIONS: Mapping[str, Callable[[str], Any]] = {"text": str, "number": float, "count": int, "switch": _switch}


@dataclass(frozen=True)
class Merged:
    """The settings in force and, for each, where its value came from (a flag, a variable, a file, 'default')."""

    settings: Settings
    sources: Mapping[str, str]


def merge(flags: Mapping[str, Value], environment: Mapping[str, str], file: Path) -> Merged:
    """The settings in force: ``flags`` (checked values; None means not given) over the environment over ``file``.

    Raises:
        UsageError: a variable or the file gives a value that is not allowed, or the file cannot be read.
    """
    values: dict[str, Value] = {}
    sources = dict.fromkeys(SPECS, "default")
    for name, value in read_file(file).items():
        values[name], sources[name] = value, str(file)
    for name in SPECS:
        # An empty variable counts as unset, as shells have no other way to say so in front of a command.
        if text := environment.get(variable(name), ""):
            values[name], sources[name] = parse(name, text, variable(name)), variable(name)
        if (given := flags.get(name)) is not None:
            values[name], sources[name] = given, flag(name)
    return Merged(dataclasses.replace(DEFAULTS, **values), sources)  # type: ignore[arg-type]


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that begins as ours do and is none, as that is a slip of the pen."""
    known = [*map(variable, SPECS), *_OTHER_VARIABLES]
    sentences = []
    for name in sorted(name for name in environment if name.startswith("DSPARK_") and name not in known):
        near = nearest(name.removeprefix("DSPARK_"), [one.removeprefix("DSPARK_").lower() for one in known])
        way_out = f"did you mean {variable(near)}?" if near else "dspark config example shows all variables"
        sentences.append(f"note: {name} is no setting: {way_out}")
    return sentences


def read_file(file: Path) -> dict[str, Value]:
    """The settings that the config file gives; none where there is no file.

    Raises:
        UsageError: it cannot be read, is not TOML, or holds a key or value that is not allowed.
    """
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot read the config file {file} ({error.strerror})", "correct its permissions") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the config file {file} is not UTF-8 text", "save it as UTF-8") from error
    values: dict[str, Value] = {}
    for key, value in _toml(text, file).items():
        if key not in SPECS:
            near = nearest(key.replace("-", "_"), SPECS)
            way_out = f"did you mean {near}?" if near else "see dspark config example for all keys"
            raise UsageError(f"unknown key {key!r} in {file}", way_out)
        values[key] = check(key, value, f"{key} in {file}")
    return values


def _toml(text: str, file: Path) -> dict[str, Any]:
    reader: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values: dict[str, Any] = reader.loads(text)
    except ValueError as error:
        raise UsageError(f"the config file {file} is not valid TOML ({error})", "correct that line") from error
    return values
