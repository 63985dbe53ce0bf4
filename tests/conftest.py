"""What every test runs under: one thread, fixed seeds, no network, uninitialised memory filled with NaN."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import signal  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from dspark_cli import interruption  # noqa: E402

# Where the tests run in the background of a script, Ctrl-C is ignored, and so it would be by all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
# New memory is NaN, so that a row that was never written cannot pass for a zero.
torch.utils.deterministic.fill_uninitialized_memory = True
torch.use_deterministic_algorithms(True)

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_signal_remembered() -> Iterator[None]:
    """A signal that one test sends ends no other."""
    yield
    interruption._came.clear()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own settings, caches or data."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in list(os.environ):
        if name.startswith("DSPARK_"):
            monkeypatch.delenv(name)
