"""An engine that stands before another one: who answers is a matter of each request."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from areal_sdk import ConfigError, EngineInfo, InferenceEngine, WeightUpdate
from areal_sdk.engine import ConfiguredEngine, EngineDeath, EngineSettings


class EngineBefore(ConfiguredEngine):
    """Everything but the answers is that of the engine behind."""

    is_repeatable = True  # if the engine behind it is, which `engine_behind` asks

    def __init__(self, behind: InferenceEngine) -> None:
        self.behind = behind

    async def start(self) -> None:
        await self.behind.start()

    @property
    def info(self) -> EngineInfo:
        return self.behind.info

    @property
    def version(self) -> int:
        return self.behind.version

    async def update_weights(self, update: WeightUpdate) -> None:
        await self.behind.update_weights(update)

    async def aclose(self) -> None:
        await self.behind.aclose()

    @property
    def pid(self) -> int | None:
        return self.behind.pid

    @property
    def is_alive(self) -> bool:
        return self.behind.is_alive

    async def died(self) -> EngineDeath:
        return await self.behind.died()

    async def restart(self) -> None:
        await self.behind.restart()


def engine_behind(
    settings: EngineSettings, name: str, options: Mapping[str, object]
) -> InferenceEngine:
    """The engine that computes, made as a run makes it."""
    assert settings.find is not None, "a run says how engines are found"
    behind = settings.find(name)
    if settings.deterministic and not behind.is_repeatable:
        raise ConfigError(f"the engine {name!r} cannot sample the same tokens twice")
    if issubclass(behind, ConfiguredEngine):
        section = settings.section.model_copy(update={"name": name})
        return behind.from_settings(replace(settings, section=section, options=options))
    make = cast("Any", behind)
    made: InferenceEngine = make(model_dir=settings.model_dir, log_dir=settings.log_dir, **options)
    return made
