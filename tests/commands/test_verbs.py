from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dspark_cli import __version__
from dspark_cli.commands.verb_table import VERBS
from tests.commands.scripted import answer_to, dspark


def test_dspark_alone_is_its_help() -> None:
    alone, asked = dspark(), dspark("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, b"")
    assert alone.stdout == dspark("-h").stdout
    for verb in VERBS:
        assert verb.name.encode() in alone.stdout
        assert verb.sentence.encode() in alone.stdout


def test_version() -> None:
    assert dspark("--version").stdout == f"dspark {__version__}\n".encode()


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run([sys.executable, "-m", "dspark_cli", "--version"], capture_output=True, check=True)
    assert done.stdout == f"dspark {__version__}\n".encode()


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_help_of_a_verb_has_examples_and_headings(verb: str) -> None:
    shown = dspark(verb, "--help").stdout.decode()
    assert shown.startswith(f"Usage: dspark {verb} [OPTIONS]")
    for words in ("Examples:", "Model:", "Sampling:", "Reply:", "Speculation:", "Machine:", "--no-think"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["rnu"], "did you mean dspark run?"),
        (["zzz"], "the commands are chat, run"),
        (["--verson"], "--version"),
        (["chat", "word"], "word"),
        (["config", "shwo"], "use show"),
        (["chat", "--think=maybe"], "--think"),
        (["--nosuch"], "there is no option --nosuch: dspark --help"),
        (["calibrate", "--rounds", "x"], "--rounds must be a whole number, not 'x'"),
        (["calibrate", "--temperature=warm"], "--temperature must be a number, not 'warm'"),
        (["calibrate", "--rounds", "0"], "--rounds 0 is too few"),
        (["eval", "--prompts", "/"], "--prompts / cannot be read (Is a directory)"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_code_2(arguments: list[str], named: str) -> None:
    done = dspark(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert named in done.stderr.decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_their_words(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = dspark("--show-completion", shell).stdout.decode()
    assert "_DSPARK_COMPLETE" in shown
    monkeypatch.setenv("_DSPARK_COMPLETE", f"complete_{shell}")
    for line, expected in (
        ("dspark ch", "chat"),
        ("dspark run --temp", "--temperature"),
        ("dspark run -m qwen3-0", "qwen3-0.6b"),
    ):
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        done = dspark()
        assert expected in done.stdout.decode(), (line, done)


def test_completion_installs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dspark("--install-completion", "bash").returncode == 0
    assert "_DSPARK_COMPLETE" in "".join(
        file.read_text() for file in tmp_path.rglob("*") if file.is_file() and "dspark" in file.name
    )


def test_a_piped_chat_answers_once() -> None:
    done = dspark("chat", stdin=b"first line\nsecond line\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer_to("first line\nsecond line"), b"")
    assert dspark("chat", "--stats", stdin=b"hi").stderr.count(b"\n") == 1


def test_an_empty_piped_chat_is_a_usage_error() -> None:
    assert dspark("chat", stdin=b"\n").returncode == 2


def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    folder = tmp_path / "settings" / "dspark"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    return folder / "config.toml"


def test_config_shows_values_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = config_home(tmp_path, monkeypatch, "temperature = 0.5\n")
    monkeypatch.setenv("DSPARK_TOP_K", "7")
    rows = {line.split()[0]: line for line in dspark("config").stdout.decode().splitlines()}
    assert rows["temperature"].split()[1:] == ["0.5", str(file)]
    assert rows["top_k"].split()[1:] == ["7", "DSPARK_TOP_K"]
    assert rows["device"].split()[1:] == ['"auto"', "default"]
    assert dspark("config", "path").stdout.decode().strip() == str(file)


def test_the_file_and_the_environment_reach_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_home(tmp_path, monkeypatch, 'system = "From the file."\n')
    assert b"From the file." in dspark("run", "hi").stdout
    monkeypatch.setenv("DSPARK_SYSTEM", "From the environment.")
    assert b"From the environment." in dspark("run", "hi").stdout
    assert b"From the flag." in dspark("run", "hi", "-s", "From the flag.").stdout


def test_a_broken_config_file_is_told_but_help_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = config_home(tmp_path, monkeypatch, "temprature = 0.5\n")
    done = dspark("run", "hi")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"did you mean temperature?" in done.stderr
    assert str(file).encode() in done.stderr
    assert dspark("run", "--help").returncode == 0
    assert dspark("config", "path").returncode == 0
