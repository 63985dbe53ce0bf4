"""From settings to an engine that is ready to reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_cli import interruption
from dspark_cli.catalog import hub, lookup
from dspark_cli.console import Console
from dspark_cli.errors import UsageError
from dspark_cli.settings import Settings

if TYPE_CHECKING:
    from dspark_cli.engine.engine import Engine


def open_engine(settings: Settings, console: Console) -> tuple[Engine, lookup.Pair]:
    """Find the pair, download what is missing, load it; remarks go to ``console``.

    Raises:
        DsparkError: something is missing, damaged or does not fit.
    """
    pair = lookup.resolve(
        settings.model,
        settings.drafter,
        find=hub.find,
        fetch=lambda repo: hub.fetch(repo, tell=console.say, progress=console.err_is_terminal),
    )
    console.passing(f"loading {pair.model_name}")
    from dspark_cli.engine.engine import Engine, EngineOptions
    from dspark_cli.engine.scheduler.policy import parse_schedule

    interruption.check()
    engine = Engine.open(
        EngineOptions(
            model=pair.model,
            model_name=pair.model_name,
            drafter=pair.drafter,
            drafter_name=pair.drafter_name,
            device=settings.device,
            threads=settings.threads,
            context_length=settings.context_length,
            weight_cache=settings.weight_cache,
            kernels=settings.kernels,
        ),
        console.say,
    )
    interruption.check()
    if settings.schedule is not None:
        parse_schedule(settings.schedule, has_confidence=engine.has_confidence if pair.drafter is not None else None)
    if pair.drafter is None and settings.schedule not in (None, "off"):
        console.say(f"note: --schedule {settings.schedule} does nothing without a drafter")
    if settings.think and not engine.supports_thinking:
        raise UsageError(f"{pair.model_name} is no thinking model", "leave --think out")
    return engine, pair
