"""The services of a run: engine, trainer, and the players (agents, gateway and rewards), here or in nodes.

They are started together and closed in reverse order. If engine and trainer share a device, the trainer gets the
engine's memory for each step, and the engine gets it back for the next weights.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from areal_sdk import certificate
from areal_sdk.backends.supervised import SupervisedEngine, supervised
from areal_sdk.config import Config
from areal_sdk.engine import InferenceEngine
from areal_sdk.launcher import Launcher, LauncherSetup
from areal_sdk.loop.plan.devices import NO_DEVICES, Devices, device_plan
from areal_sdk.loop.plan.models import FoundModel
from areal_sdk.loop.plan.parts import make_engine, make_trainer
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.services.elastic import (
    TrainerRanks,
    check_finds_room,
    choose_ranks,
    is_elastic,
    with_ranks,
)
from areal_sdk.loop.services.playing import Blueprint, PlayingSide, choose_playing
from areal_sdk.plugins import Plugins
from areal_sdk.process.family import used_by
from areal_sdk.process.memory import free_mb, short_collections
from areal_sdk.process.threads import in_thread
from areal_sdk.telemetry import RunDir, waiting
from areal_sdk.trainer import PresetSpec, Trainer
from areal_sdk.types import WeightUpdate


@dataclass(frozen=True, slots=True)
class Services:
    """A model that is served, and perhaps trained, and the players that use it."""

    config: Config
    run_dir: RunDir
    plugins: Plugins
    model: FoundModel
    engine: SupervisedEngine
    trainer: Trainer | None
    ranks: TrainerRanks
    playing: PlayingSide

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds that each process of the run on this machine has used so far, by name."""
        return {name: seconds for name, (seconds, _) in self._used().items()}

    def parts(self) -> dict[str, Any]:
        """The state of the parts now: CPU time and memory of each process, free memory, and calls of the engine."""
        used = {name: [round(number, 1) for number in both] for name, both in self._used().items()}
        return {"processes": used, "free_mb": free_mb(), **self.playing.calls}

    def _used(self) -> dict[str, tuple[float, float]]:
        pids = {"main": os.getpid()}
        if self.engine.pid is not None:
            pids["engine"] = self.engine.pid
        if self.trainer is not None:
            pids |= self.trainer.pids
        pids |= self.playing.pids
        used = {name: used_by(pid) for name, pid in pids.items()}
        return {name: both for name, both in used.items() if both is not None}


@asynccontextmanager
async def open_services(
    config: Config,
    program: Program,
    *,
    model: FoundModel,
    plugins: Plugins,
    run_dir: RunDir,
    learns: PresetSpec | None = None,
    most_ranks: int | None = None,
    say: Callable[[str], None],
) -> AsyncIterator[Services]:
    """Start engine, gateway and agents, and the trainer if there is an algorithm. `most_ranks` is the number of trainer
    ranks for which there was room when the run began again in order to grow. Whatever fails, all services are closed.
    """
    plan = partial(device_plan, config, plugins, model.directory, learns=learns is not None)
    devices = await in_thread(plan, name="plan devices")
    for line in devices.lines:
        say(line)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(
            open_launcher(config, plugins=plugins, run_dir=run_dir, say=say, devices=devices)
        )
        made_of = Blueprint(config, program, model, plugins, run_dir, launcher, say)
        engine = make_engine(
            config,
            model.directory,
            plugins=plugins,
            log_dir=run_dir.logs,
            launcher=launcher,
            environments=devices.environments,
        )
        trainer = None
        parts: list[InferenceEngine | Trainer] = [engine]
        stack.push_async_callback(_close_together, parts)
        starts: list[Callable[[], Awaitable[None]]] = [engine.start]
        ranks = TrainerRanks(config.trainer.ranks, config, launcher)
        if learns is not None:
            if is_elastic(config):
                check_finds_room(config, launcher)
                await engine.start()  # it takes its room first: the ranks get what is left
                starts.clear()
                ranks = await choose_ranks(config, launcher, most=most_ranks, say=say)
            trainer = _make_trainer(made_of, learns, ranks)
            parts.append(trainer)
            starts.append(trainer.start)
        way = choose_playing(made_of)
        stack.push_async_callback(way.aclose)
        await _start_together([*starts, way.start])
        served = await stack.enter_async_context(supervised(engine, say=say))
        if trainer is not None:
            await stack.enter_async_context(fail_with_ranks(trainer))
        playing = await stack.enter_async_context(way.open(served))
        stack.enter_context(short_collections())
        yield Services(config, run_dir, plugins, model, served, trainer, ranks, playing)


def _make_trainer(made_of: Blueprint, learns: PresetSpec, ranks: TrainerRanks) -> Trainer:
    config, model = made_of.config, made_of.model
    named = certificate.format_in_key(model.renderer, config.gateway.tool_format)
    if doubt := certificate.warning(model.directory, tool_format=named):
        made_of.say(doubt)
    return make_trainer(
        with_ranks(config, ranks.num),
        model.directory,
        preset=learns,
        plugins=made_of.plugins,
        log_dir=made_of.run_dir.logs,
        launcher=made_of.launcher,
        say=made_of.say,
    )


async def _start_together(starts: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Start parts side by side, since each loads for long; the first failure ends the others."""

    async def run(start: Callable[[], Awaitable[None]]) -> None:
        await start()

    async with asyncio.TaskGroup() as starting:
        for start in starts:
            starting.create_task(run(start))


@asynccontextmanager
async def open_launcher(
    config: Config,
    *,
    plugins: Plugins,
    run_dir: RunDir,
    say: Callable[[str], None],
    devices: Devices = NO_DEVICES,
) -> AsyncIterator[Launcher]:
    """The launcher that `cluster.launcher` names."""
    name = config.cluster.launcher
    setup = LauncherSetup(
        config.cluster,
        run_dir.path.name,
        config.trainer.ranks,
        run_dir.logs,
        say,
        devices.environments,
    )
    opening = plugins.configure("cluster", name, config.options.get(f"cluster.{name}", {}))
    launcher = await opening(setup)
    try:
        yield launcher
    finally:
        await launcher.aclose()


async def _close_together(parts: Sequence[InferenceEngine | Trainer]) -> None:
    """Close the parts side by side: each may be in the middle of something, and Ctrl-C has five seconds."""
    await asyncio.gather(*(part.aclose() for part in parts))


@asynccontextmanager
async def fail_with_ranks(trainer: Trainer) -> AsyncIterator[None]:
    """End the block if a rank dies, even while no call to it runs: rollouts can take long."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_watch_ranks(trainer), name="trainer watch")
        try:
            yield
        finally:
            watch.cancel()


async def _watch_ranks(trainer: Trainer) -> None:
    raise await trainer.died()


HANDOVER_TIMEOUT_S = 900.0
"""Deadline of handing the device over, in seconds. A server in the middle of its start is waited for."""


async def hand_to_trainer(engine: InferenceEngine) -> None:
    """Hold generation and free the engine's memory. No update may be on its way."""
    if engine.info.shares_device:
        async with waiting("engine: lends its memory", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.release_memory()


async def hand_to_engine(engine: InferenceEngine, trainer: Trainer) -> None:
    """Give the engine, after `publish`, the memory that the trainer does not keep between steps."""
    if engine.info.shares_device:
        await trainer.release_memory()
        async with waiting("engine: takes its memory back", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.resume_memory()


async def update_and_resume(engine: InferenceEngine, update: WeightUpdate) -> None:
    """Serve `update`. Held requests continue under the new weights."""
    await engine.update_weights(update)
    if engine.info.shares_device:
        await engine.resume()
