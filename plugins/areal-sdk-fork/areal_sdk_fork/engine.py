"""The engine `fork`: it stands before another engine, and answers the first turns from the record of an episode.

Agent, environment, gateway and rewards are those of an evaluation, so the world of the episode is at turn K what it was
when the episode was recorded.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from areal_sdk import ConfigError, GenerateChunk, GenerateRequest, InferenceEngine, Run
from areal_sdk.engine import EngineSettings
from areal_sdk_fork.before import EngineBefore, engine_behind
from areal_sdk_fork.replay import Replay, chunk_of


class ForkEngine(EngineBefore):
    """`[engine.fork]`: `run`, `episode` and `turn` name the fork; `engine` and `options` the engine that goes on."""

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> InferenceEngine:
        asked = settings.options
        turns = Run(asked["run"]).episode(asked["episode"]).turns
        if not 0 <= asked["turn"] < len(turns):
            raise ConfigError(
                f"--turn {asked['turn']}: {asked['episode']} has the turns 0 to {len(turns) - 1}"
            )
        behind = engine_behind(settings, asked["engine"], asked.get("options", {}))
        return cls(behind, Replay(turns, asked["turn"]))

    def __init__(self, behind: InferenceEngine, replay: Replay) -> None:
        super().__init__(behind)
        self._replay = replay

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        if (turn := self._replay.answer(request)) is not None:
            yield chunk_of(turn, request, self.info.stop_tokens)
            return
        chunks = cast("Any", self.behind.stream(request))
        async with aclosing(chunks):  # a stream that is closed early frees its slot
            async for chunk in chunks:
                yield chunk
