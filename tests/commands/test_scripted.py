"""The scripted engine keeps to the real one's surface, though it must not import torch."""

from __future__ import annotations

import dataclasses
import inspect

from dspark_cli.engine import contracts
from dspark_cli.engine.engine import Engine
from tests.fakes import scripted_engine


def test_sampling_has_the_same_fields_and_defaults() -> None:
    ours = [(f.name, f.default) for f in dataclasses.fields(contracts.Sampling)]
    assert [(f.name, f.default) for f in dataclasses.fields(scripted_engine.Sampling)] == ours


def test_what_the_scripted_engine_offers_the_real_one_has_with_the_same_parameters() -> None:
    fake = scripted_engine.ScriptedEngine
    for name, member in vars(fake).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        real = inspect.signature(getattr(Engine, name)).parameters
        named = {p.name for p in inspect.signature(member).parameters.values() if p.kind is not p.VAR_KEYWORD}
        assert named <= set(real), name
