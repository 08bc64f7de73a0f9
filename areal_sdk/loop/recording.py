"""Traces: every session of callers, in a run directory."""

from types import TracebackType
from typing import Self

from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway.live import SPLIT, LiveSession
from areal_sdk.rollout.live import to_episode
from areal_sdk.telemetry import EpisodeWriter, RunDir


class Recorder:
    """Writes sessions as they end."""

    def __init__(self, run_dir: RunDir, engine: InferenceEngine | None = None) -> None:
        self._episodes = EpisodeWriter(run_dir.episodes)
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._episodes.close()

    def opened(self, live: LiveSession) -> None:
        """Nothing to write yet."""

    def finished(self, live: LiveSession) -> None:
        if live.session.turns:
            version = self._engine.version if self._engine is not None else None
            self._episodes.write(to_episode(live), version=version, split=SPLIT)
