"""The engine `fork`: it stands before another engine, and answers the first turns from the record of an episode.

Agent, environment, gateway and rewards are those of an evaluation, so the world of the episode is at turn K what it was
when the episode was recorded.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from areal_sdk import (
    ConfigError,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
    Run,
    WeightUpdate,
)
from areal_sdk.engine import ConfiguredEngine, EngineDeath, EngineSettings
from areal_sdk_fork.replay import Replay, chunk_of


class ForkEngine(ConfiguredEngine):
    """`[engine.fork]`: `run`, `episode` and `turn` name the fork; `engine` and `options` the engine that goes on."""

    is_repeatable = True  # if the engine behind it is, which is asked in `from_settings`

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> InferenceEngine:
        asked = settings.options
        turns = Run(asked["run"]).episode(asked["episode"]).turns
        if not 0 <= asked["turn"] < len(turns):
            raise ConfigError(
                f"--turn {asked['turn']}: {asked['episode']} has the turns 0 to {len(turns) - 1}"
            )
        behind = _engine(settings, asked["engine"], asked.get("options", {}))
        return cls(behind, Replay(turns, asked["turn"]))

    def __init__(self, behind: InferenceEngine, replay: Replay) -> None:
        self._behind = behind
        self._replay = replay

    async def start(self) -> None:
        await self._behind.start()

    @property
    def info(self) -> EngineInfo:
        return self._behind.info

    @property
    def version(self) -> int:
        return self._behind.version

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        if (turn := self._replay.answer(request)) is not None:
            yield chunk_of(turn, request, self.info.stop_tokens)
            return
        chunks = cast("Any", self._behind.stream(request))
        async with aclosing(chunks):  # a stream that is closed early frees its slot
            async for chunk in chunks:
                yield chunk

    async def update_weights(self, update: WeightUpdate) -> None:
        await self._behind.update_weights(update)

    async def aclose(self) -> None:
        await self._behind.aclose()

    @property
    def pid(self) -> int | None:
        return self._behind.pid

    @property
    def is_alive(self) -> bool:
        return self._behind.is_alive

    async def died(self) -> EngineDeath:
        return await self._behind.died()

    async def restart(self) -> None:
        await self._behind.restart()


def _engine(settings: EngineSettings, name: str, options: Mapping[str, object]) -> InferenceEngine:
    """The engine that samples, made as a run makes it."""
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
