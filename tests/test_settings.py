from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.errors import UsageError
from dspark_cli.settings import DEFAULTS, SPECS, check, flag, merge, parse, read_file, unknown_variables, variable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_every_setting_has_a_sentence_and_a_default_that_it_allows() -> None:
    for name, spec in SPECS.items():
        assert spec.sentence.endswith(".")
        assert len(spec.sentence) > 20
        default = getattr(DEFAULTS, name)
        if default is None:
            assert spec.unset
        else:
            assert check(name, default, name) == default
        if spec.example is not None:
            assert check(name, spec.example, name) == spec.example


def test_flags_win_over_the_environment_over_the_file_over_the_default(file: Path) -> None:
    file.write_text('temperature = 0.1\ntop_k = 1\nmodel = "in-file"\n')
    environment = {"DSPARK_TEMPERATURE": "0.2", "DSPARK_TOP_K": "2", "DSPARK_SEED": ""}
    merged = merge({"temperature": 0.3, "top_k": None}, environment, file)
    assert (merged.settings.temperature, merged.sources["temperature"]) == (0.3, "--temperature")
    assert (merged.settings.top_k, merged.sources["top_k"]) == (2, "DSPARK_TOP_K")
    assert (merged.settings.model, merged.sources["model"]) == ("in-file", str(file))
    assert (merged.settings.seed, merged.sources["seed"]) == (None, "default")


def test_a_flag_that_is_off_or_zero_counts_as_given(file: Path) -> None:
    file.write_text("think = true\nweight_cache = true\ntemperature = 1\n")
    merged = merge({"think": False, "weight_cache": False, "temperature": 0.0}, {}, file)
    assert merged.settings.think is False
    assert merged.settings.weight_cache is False
    assert merged.settings.temperature == 0.0


def test_without_a_file_the_defaults_hold(file: Path) -> None:
    assert merge({}, {}, file).settings == DEFAULTS


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("temprature = 1", ["'temprature'", "did you mean temperature?"]),
        ("max-new-tokens = 5", ["did you mean max_new_tokens?"]),
        ("zzzz = 1", ["dspark config example"]),
        ("top_p = 2", ["top_p in", "at most 1"]),
        ("top_p = 'x'", ["top_p in", "a number"]),
        ("top_k = 1.5", ["top_k in", "whole number"]),
        ("top_k = true", ["top_k in", "whole number"]),
        ("think = 1", ["think in", "true or false"]),
        ("stop = [1]", ["stop in", "list of texts"]),
        ("temperature = nan", ["temperature in"]),
        ("seed = 9223372036854775808", ["seed in"]),
        ("model = x\ntop_k = 1", ["not valid TOML", "line 1"]),
        ("[sampling]\ntemperature = 1", ["'sampling'"]),
    ],
)
def test_a_wrong_file_is_told_with_the_way_out(file: Path, content: str, named: list[str]) -> None:
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        read_file(file)
    for words in [*named, str(file)]:
        assert words in str(caught.value)


def test_a_file_that_is_no_text_or_a_folder_is_told(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        read_file(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_file(file)


def test_a_wrong_variable_is_named(file: Path) -> None:
    with pytest.raises(UsageError, match="DSPARK_TOP_P must be"):
        merge({}, {"DSPARK_TOP_P": "2"}, file)


def test_a_variable_that_is_no_setting_is_told_with_the_nearest() -> None:
    ours = dict.fromkeys([*map(variable, SPECS), "DSPARK_DEBUG", "DSPARK_GOLDEN", "_DSPARK_COMPLETE", "PATH"], "1")
    assert unknown_variables(ours) == []
    slips = unknown_variables({**ours, "DSPARK_ZZZZ": "1", "DSPARK_TEMPRATURE": "1"})
    assert slips == [
        "note: DSPARK_TEMPRATURE is no setting: did you mean DSPARK_TEMPERATURE?",
        "note: DSPARK_ZZZZ is no setting: dspark config example shows all variables",
    ]


@pytest.mark.parametrize("name", ["model", "drafter"])
@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_name_is_no_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{flag(name)} must be a folder"):
        parse(name, text, flag(name))
    assert parse(name, "a b/c\nd", flag(name)) == "a b/c\nd"


@pytest.mark.parametrize("text", ["off", "fixed:0", "fixed:12", "threshold:0", "threshold:.5", "threshold:1.0"])
def test_schedules_that_may_be_meant_pass(text: str) -> None:
    assert parse("schedule", text, "--schedule") == text


@pytest.mark.parametrize("text", ["", "on", "fixed", "fixed:-1", "fixed:x", "threshold:1.01", "threshold:nan", "off "])
def test_other_schedules_do_not(text: str) -> None:
    with pytest.raises(UsageError, match="--schedule must be fixed:N"):
        parse("schedule", text, "--schedule")


@given(st.text())
def test_any_text_is_a_value_or_a_usage_error_that_names_the_flag(text: str) -> None:
    for name, spec in SPECS.items():
        value: object = None
        said = flag(name)
        try:
            value = parse(name, text, flag(name))
        except UsageError as error:
            said = str(error)
        assert said.startswith(flag(name))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert spec.low <= value <= spec.high


def test_switches_read_the_usual_words() -> None:
    assert [parse("think", word, "x") for word in ("1", "Yes", "on", "TRUE", "0", "no", "Off", "false")] == [
        True, True, True, True, False, False, False, False,
    ]  # fmt: skip
    assert variable("weight_cache") == "DSPARK_WEIGHT_CACHE"
