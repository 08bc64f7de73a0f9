"""A run without torch: the engine answers from a script, the trainer learns nothing.

`start_training(directory, *SCRIPTED)` starts such a run, with any agent. All else is real: processes,
the gateway, the books, checkpoints. It costs a fifth of the CPU of a run that learns, so it is for
tests of what the main process does. What a rank or a sampler does needs a run without `SCRIPTED`.

While there is a file `hold-step` beside the run directory, a step does not end, and makes a file
`in-step`. `hold-publish`, `hold-save` and `hold-close` do the same to the weights of a step, to a
checkpoint and to the trainer's end. A file `lose-engine` ends the engine for good.
"""

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import areal_sdk
from areal_sdk.engine import (
    ConfiguredEngine,
    EngineClient,
    EngineDeath,
    EngineEntrance,
    EngineInfo,
    EngineSettings,
    GenerateChunk,
    GenerateRequest,
    Tell,
)
from areal_sdk.telemetry.directories import whole_directory
from areal_sdk.telemetry.token_log import (
    CountedGroup,
    CountedSequence,
    StepTokens,
    TokenFlag,
    runs_of,
)
from areal_sdk.testing import Reply, ScriptedEngine
from areal_sdk.trainer import Demonstration, Trainer, TrainerInfo, TrainerSetup
from areal_sdk.trajectory import TrajectoryGroup

NUM_TOKENS = 64
"""Length of an answer that no limit cuts off."""
TOKEN_S = 0.001
"""Seconds per token. Without them a run takes a thousand steps before its test looks."""


class Babbler(ScriptedEngine, ConfiguredEngine):
    """Answers random bytes, as the random `tiny` model does: rewards vary."""

    is_repeatable = True
    is_shareable = True
    _tell: Tell | None = None
    _log_dir: Path | None = None

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "Babbler":
        engine = cls.on(settings.model_dir, max_context=settings.section.max_context or 4096)
        engine._log_dir = settings.log_dir
        return engine

    async def died(self) -> EngineDeath:
        assert self._log_dir is not None
        while True:
            await asyncio.sleep(0.05)
            if (self._log_dir.parents[1] / "lose-engine").exists():
                return EngineDeath("was lost", self._log_dir / "engine.log")

    @classmethod
    def on(cls, model_dir: Path, *, max_context: int) -> "Babbler":
        return cls(
            babble,
            model_dir=model_dir,
            max_context=max_context,
            tokens_per_chunk=8,
            on_token=lambda request, index: asyncio.sleep(TOKEN_S),
        )

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        self._tell = tell
        return EngineEntrance(f"{__file__}::BabblerClient", {"version": self.version})

    async def update_weights(self, update: areal_sdk.WeightUpdate) -> None:
        await super().update_weights(update)
        if self._tell is not None:
            await self._tell({"version": update.version})


class BabblerClient(EngineClient):
    """A rollout node's: it babbles by itself, under the version that the main process tells."""

    def __init__(self, info: EngineInfo, *, name: str) -> None:
        super().__init__(info, name=name)
        self._babbler = Babbler.on(Path(info.model), max_context=info.max_context)

    async def told(self, state: Mapping[str, Any]) -> None:
        await self._babbler.update_weights(areal_sdk.WeightUpdate(state["version"], None))

    @property
    def version(self) -> int:
        return self._babbler.version

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._babbler.stream(request)

    async def aclose(self) -> None:
        await self._babbler.aclose()


_UNSEEDED = random.Random(0)


def babble(request: GenerateRequest) -> Reply:
    generator = _UNSEEDED if request.seed is None else random.Random(request.seed)
    return Reply([generator.randrange(256) for _ in range(NUM_TOKENS)])


class Idler(Trainer):
    """Counts what it gets, and publishes the weights as they are."""

    def __init__(self, setup: TrainerSetup) -> None:
        self._model_dir = setup.model_dir
        self._log_dir = setup.log_dir
        self._num_seen = 0

    async def start(self) -> None:
        pass

    @property
    def info(self) -> TrainerInfo:
        return TrainerInfo()

    async def step(
        self, groups: Sequence[TrajectoryGroup], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        await self._held("hold-step", "in-step")
        num_trained = sum(int(t.loss_mask.sum()) for g in groups for t in g.trajectories)
        self._num_seen += num_trained
        self.tokens = _counted(groups, version=version)
        return {
            "num_updates": 1.0,
            "num_trained": float(num_trained),
            "num_tokens": float(num_trained),
            "loss": 0.0,
        }

    async def learn(self, rows: Sequence[Demonstration], **_: Any) -> Mapping[str, float]:
        await self._held("hold-step", "in-step")
        return {"num_updates": 1.0, "num_tokens": float(len(rows)), "loss": 0.0}

    async def publish(self, version: int) -> areal_sdk.WeightUpdate:
        await self._held("hold-publish", "in-publish")
        return areal_sdk.WeightUpdate(version, None)

    async def save(self, directory: Path, extra: Mapping[str, Any]) -> None:
        await self._held("hold-save", "in-save")
        with whole_directory(directory) as partial:
            (partial / "seen.json").write_text(json.dumps([self._num_seen, dict(extra)]))

    async def load(self, directory: Path) -> Mapping[str, Any]:
        self._num_seen, extra = json.loads((directory / "seen.json").read_text())
        found: Mapping[str, Any] = extra
        return found

    async def export(self, directory: Path) -> None:
        shutil.copytree(self._model_dir, directory, dirs_exist_ok=True)

    async def aclose(self) -> None:
        await self._held("hold-close", "in-close")

    async def _held(self, hold: str, said: str) -> None:
        beside = self._log_dir.parents[1]
        while (beside / hold).exists():
            (beside / said).touch()
            await asyncio.sleep(0.01)


def _counted(groups: Sequence[TrajectoryGroup], *, version: int) -> StepTokens:
    """The record of a step that gave no token a term in its loss."""
    sequences = tuple(
        CountedSequence(
            t.episode_id,
            number,
            t.reward,
            1.0,
            runs_of(t.turn_of_token[t.loss_mask], np.flatnonzero(t.loss_mask)),
        )
        for number, group in enumerate(groups)
        for t in group.trajectories
    )
    flags = np.full(sum(s.num_tokens for s in sequences), TokenFlag.COUNTED, np.uint8)
    of_groups = tuple(CountedGroup(group.id, group.task_id, None) for group in groups)
    return StepTokens(version, (), of_groups, sequences, {"flags": flags})


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("scripted", Babbler)


@areal_sdk.hookimpl
def register_trainers(register: Callable[[str, object], None]) -> None:
    register("scripted", Idler)
