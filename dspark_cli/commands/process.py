"""The edge of the process: standard streams, signals, errors in a sentence, exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, MutableMapping

import typer

from dspark_cli import interruption
from dspark_cli.console import Console
from dspark_cli.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    DsparkError,
)

_COMPLETION_VARIABLE = "_DSPARK_COMPLETE"


# How often a thread of the GNU OpenMP looks for work before it sleeps. Its default of 300,000 makes a step on two
# threads take seconds where another program holds a core; at 10,000 that step takes twice its time, and on a machine
# at rest nothing changes (both measured on two cores).
_SPINS = "10000"


def run_program(arguments: list[str]) -> int:
    """Run ``dspark`` with ``arguments``; returns the exit code. Errors are told on standard error."""
    out_closed = _fill_closed_descriptors()
    console = Console.standard()
    share_cores(os.environ)
    interruption.install()
    if out_closed:
        console.error("standard output is closed: send it to a file or to /dev/null")
        return EXIT_ERROR
    try:
        return guarded(lambda: _invoke(arguments, console), console, debug=wants_debug(arguments))
    finally:
        _abandon_broken_streams()


def share_cores(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads wait politely, unless the user chose how; read when torch is loaded, so before that."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = _SPINS


def wants_debug(arguments: list[str]) -> bool:
    """Whether tracebacks are asked for; known before the arguments are parsed, as that may fail too."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in flags or os.environ.get("DSPARK_DEBUG", "") not in ("", "0", "false")


def guarded(work: Callable[[], int], console: Console, *, debug: bool) -> int:
    """The exit code of ``work``; whatever it raises becomes a sentence and a code.

    Work that was told to end never counts as done, also where it went on to its own end.
    """
    try:
        return work() or interruption.exit_code()
    except interruption.Terminated:
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        console.fresh_line()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    except Exception as error:
        console.fresh_line()
        # A library may turn a Ctrl-C in its middle into an error of its own.
        if not debug and interruption.exit_code():
            return interruption.exit_code()
        if debug:
            console.tell(traceback.format_exc().rstrip())
        sentence, code = _explained(error, debug)
        console.error(sentence)
        return code


# How torch says it on the CPU (two allocators) and on a card; its own type of error needs torch to be named.
_OUT_OF_MEMORY = re.compile(r"can(no|')t allocate memory|out of memory", re.IGNORECASE)


def _explained(error: Exception, debug: bool) -> tuple[str, int]:
    if isinstance(error, DsparkError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return "the memory of this machine is not enough: use a smaller model or a smaller --context-length", EXIT_ERROR
    way_out = "" if debug else ": this should not happen, and --debug shows where it did"
    return f"{type(error).__name__}: {error}{way_out}", EXIT_ERROR


def _invoke(arguments: list[str], console: Console) -> int:
    from dspark_cli.commands.verb_table import program

    command = program()
    if _COMPLETION_VARIABLE in os.environ:
        command.main(args=arguments, prog_name="dspark")
    try:
        with command.make_context("dspark", list(arguments), obj=console) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    console.flush()
    return 0


def _fill_closed_descriptors() -> bool:
    """Put /dev/null where a standard descriptor is closed, lest a file that is opened later takes its place.

    ``sys.stdin`` stays None where standard input was closed. Returns whether standard output was.
    """
    out_closed = sys.stdout is None
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return out_closed


def _abandon_broken_streams() -> None:
    """Let what can no longer be written go, or the interpreter complains about it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
