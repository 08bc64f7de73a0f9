"""The services of a run: engine, trainer, and the players (agents, gateway and rewards), here or in nodes.

They are started together and closed in reverse order. If engine and trainer share a device, the trainer gets the
engine's memory for each step, and the engine gets it back for the next weights.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk import certificate
from areal_sdk.agent import AgentLike
from areal_sdk.backends.supervised import SupervisedEngine, supervised
from areal_sdk.config import Config
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.launcher import Launcher, LauncherSetup
from areal_sdk.loop.plan.models import FoundModel
from areal_sdk.loop.plan.parts import make_engine, make_trainer, reward_specs
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.services.elastic import (
    TrainerRanks,
    check_finds_room,
    choose_ranks,
    is_elastic,
    with_ranks,
)
from areal_sdk.loop.services.gateway import rollout_sampling
from areal_sdk.loop.services.gateway_process import open_gateways
from areal_sdk.loop.services.node import node_specs
from areal_sdk.loop.services.players import Players, open_players, open_rewards
from areal_sdk.plugins import Plugins
from areal_sdk.process.family import cpu_seconds
from areal_sdk.process.garbage import short_collections
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.pool import AgentPool, playable
from areal_sdk.rollout.dispatcher import WatchesEpisodes
from areal_sdk.rollout.gateways.pool import GatewayPool
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.rollout.nodes.pool import NodePool
from areal_sdk.rollout.tasks import PlaysEpisodes
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
    players: Players | NodePool | GatewayPool
    """Agents of this process, nodes (`rollout.nodes`), or callers of gateway processes (`serve.processes`)."""
    rewards: RewardPool | None
    """Judge callers' episodes."""

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far by this process, and by those of the others on this machine."""
        pids = {"main": os.getpid()}
        if self.engine.pid is not None:
            pids["engine"] = self.engine.pid
        if self.trainer is not None:
            pids |= self.trainer.pids
        pids |= self.players.pids
        used = {name: cpu_seconds(pid) for name, pid in pids.items()}
        return {name: seconds for name, seconds in used.items() if seconds is not None}

    def runner(
        self, *, split: str, sampling: SamplingPolicy
    ) -> AbstractAsyncContextManager[PlaysEpisodes]:
        """Plays this program's episodes: `async with` it."""
        return self._agents.runner(split=split, sampling=sampling)

    def training_runner(self) -> AbstractAsyncContextManager[WatchesEpisodes]:
        """Plays training episodes; nodes triage them too."""
        agents, rollout = self._agents, self.config.rollout
        sampling = rollout_sampling(rollout)
        if isinstance(agents, NodePool):
            return agents.training_runner(sampling=sampling, truncated=rollout.truncated)
        return agents.runner(split="train", sampling=sampling)

    @property
    def _agents(self) -> Players | NodePool:
        assert not isinstance(self.players, GatewayPool), "callers play when they like"
        return self.players


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
    """Start engine, gateway and agents, and the trainer if there is an algorithm. `most_ranks` is the number of
    trainer ranks for which there was room when the run began again in order to grow. Whatever fails, all services are
    closed.
    """
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(
            open_launcher(config, plugins=plugins, run_dir=run_dir, say=say)
        )
        placing: dict[str, Any] = {
            "plugins": plugins,
            "log_dir": run_dir.logs,
            "launcher": launcher,
        }
        engine = make_engine(config, model.directory, **placing)
        trainer = None
        parts: list[InferenceEngine | Trainer] = [engine]
        stack.push_async_callback(_close_together, parts)
        ranks = TrainerRanks(config.trainer.ranks, config, launcher)
        is_up = learns is not None and is_elastic(config)
        if is_up:
            check_finds_room(config, launcher)
            await engine.start()  # it takes its room first: the ranks get what is left
            ranks = await choose_ranks(config, launcher, most=most_ranks, say=say)
        if learns is not None:
            named = certificate.format_in_key(model.renderer, config.gateway.tool_format)
            if doubt := certificate.warning(model.directory, tool_format=named):
                say(doubt)
            trainer = make_trainer(
                with_ranks(config, ranks.num), model.directory, preset=learns, say=say, **placing
            )
            parts.append(trainer)
        agent = None
        if config.rollout.nodes == 1:
            agent = playable(program.agent, config.rollout, log_dir=run_dir.logs)
        await _start_together(None if is_up else engine, trainer, agent, stack)
        served = await stack.enter_async_context(supervised(engine, say=say))
        if trainer is not None:
            await stack.enter_async_context(fail_with_ranks(trainer))
        rewards = reward_specs(config, plugins)
        players: Players | NodePool | GatewayPool
        if config.serve.learn and config.serve.processes > 1:
            judges = await open_rewards(rewards, config.rollout, run_dir.logs, stack)
            players = await stack.enter_async_context(
                open_gateways(config, served, model=model, log_dir=run_dir.logs, say=say)
            )
        elif agent is None:
            judges = None
            players = await stack.enter_async_context(
                _open_nodes(config, program, model, served, rewards, launcher, run_dir.logs, say)
            )
        else:
            players = await stack.enter_async_context(
                open_players(
                    config,
                    agent,
                    served,
                    renderer=model.renderer,
                    rewards=rewards,
                    log_dir=run_dir.logs,
                    host=config.gateway.host,
                    port=config.gateway.port,
                )
            )
            judges = players.rewards
        stack.enter_context(short_collections())
        yield Services(config, run_dir, plugins, model, served, trainer, ranks, players, judges)


async def _start_together(
    engine: InferenceEngine | None,
    trainer: Trainer | None,
    agent: AgentLike | None,
    stack: AsyncExitStack,
) -> None:
    """Start the parts side by side, since each takes long to load. The agent is closed with `stack`."""
    if isinstance(agent, CommandAgent | AgentPool):
        stack.push_async_callback(agent.aclose)
    async with asyncio.TaskGroup() as starting:
        if engine is not None:
            starting.create_task(engine.start())
        if isinstance(agent, AgentPool):
            starting.create_task(agent.start())
        if trainer is not None:
            starting.create_task(trainer.start())


@asynccontextmanager
async def _open_nodes(
    config: Config,
    program: Program,
    model: FoundModel,
    engine: SupervisedEngine,
    rewards: Sequence[RewardSpec],
    launcher: Launcher,
    log_dir: Path,
    say: Callable[[str], None],
) -> AsyncIterator[NodePool]:
    """Rollout nodes, which sample from `engine` without this process."""
    rollout = config.rollout
    nodes: NodePool

    async def tell(state: Mapping[str, Any]) -> None:
        await nodes.tell(state)

    entrance = await engine.open_entrance(tell, host=launcher.host)
    nodes = NodePool(
        node_specs(
            config,
            program,
            model=model,
            rewards=rewards,
            log_dir=log_dir,
            info=engine.info,
            entrance=entrance,
        ),
        size=rollout.nodes,
        launcher=launcher,
        infra_retries=rollout.infra_retries,
        longest_s=rollout.episode_timeout_s * (1 + rollout.infra_retries),
        say=say,
    )
    await nodes.start(entrance.state)
    try:
        yield nodes
    finally:
        await nodes.aclose()


@asynccontextmanager
async def open_launcher(
    config: Config, *, plugins: Plugins, run_dir: RunDir, say: Callable[[str], None]
) -> AsyncIterator[Launcher]:
    """The launcher that `cluster.launcher` names."""
    name = config.cluster.launcher
    setup = LauncherSetup(
        config.cluster, run_dir.path.name, config.trainer.ranks, run_dir.logs, say
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
