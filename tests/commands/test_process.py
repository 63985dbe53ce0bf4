"""What a user is told of errors that are not ours."""

from __future__ import annotations

import pytest

from dspark_cli.commands.process import _explained, share_cores
from dspark_cli.errors import EXIT_ERROR


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("unable to mmap 538091776 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    ],
)
def test_too_little_memory_is_said_in_words(error: Exception) -> None:
    sentence, code = _explained(error, debug=False)
    assert sentence.startswith("the memory of this machine is not enough: use a smaller model")
    assert code == EXIT_ERROR


def test_anything_else_says_that_it_should_not_happen() -> None:
    sentence, code = _explained(RuntimeError("broken on purpose"), debug=False)
    assert "should not happen" in sentence
    assert code == EXIT_ERROR


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None), ({"A": "1"}, "10000")],
)
def test_threads_wait_politely_unless_the_user_chose_how(environment: dict[str, str], spins: str | None) -> None:
    share_cores(environment)
    assert environment.get("GOMP_SPINCOUNT") == spins
