"""The services of a run: engine, trainer, gateway, rewards and agent workers.

They are started together and closed in reverse order. Where engine and trainer share a device, the
engine's memory goes to the trainer for a step, and comes back for the next weights.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from areal_sdk import certificate
from areal_sdk.agent import AgentLike
from areal_sdk.backends.supervised import SupervisedEngine, supervised
from areal_sdk.config import Config, RolloutSection
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits
from areal_sdk.loop.plan.models import FoundModel
from areal_sdk.loop.plan.parts import make_engine, make_trainer, reward_specs
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.serving import make_gateway
from areal_sdk.plugins import Plugins
from areal_sdk.process.family import cpu_seconds
from areal_sdk.process.garbage import short_collections
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.pool import AgentPool, playable
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.rewards import RewardPool
from areal_sdk.telemetry import RunDir, waiting
from areal_sdk.trainer import PresetSpec, Trainer
from areal_sdk.types import WeightUpdate


@dataclass(frozen=True, slots=True)
class Services:
    """A model being served (and, with a trainer, trained), and who plays on it."""

    config: Config
    run_dir: RunDir
    plugins: Plugins
    agent: AgentLike
    model: FoundModel
    engine: SupervisedEngine
    gateway: Gateway
    rewards: RewardPool | None
    trainer: Trainer | None

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far by this process, and by those of engine and trainer on this machine."""
        pids = {"main": os.getpid()}
        if self.engine.pid is not None:
            pids["engine"] = self.engine.pid
        if self.trainer is not None:
            pids |= self.trainer.pids
        if isinstance(self.agent, AgentPool):
            pids |= self.agent.pids
        used = {name: cpu_seconds(pid) for name, pid in pids.items()}
        return {name: seconds for name, seconds in used.items() if seconds is not None}

    def runner(self, *, split: str, sampling: SamplingPolicy) -> EpisodeRunner:
        """Plays this program's episodes: `async with` it."""
        rollout = self.config.rollout
        on_error = rollout.on_agent_error
        return EpisodeRunner(
            self.agent,
            gateway=self.gateway,
            rewards=self.rewards,
            limits=SessionLimits(
                max_turns=rollout.max_turns,
                max_tokens=rollout.max_episode_tokens,
                max_new_tokens=rollout.max_new_tokens,
            ),
            sampling=sampling,
            seed=self.config.run.seed,
            deterministic=self.config.run.deterministic,
            split=split,
            episode_timeout_s=rollout.episode_timeout_s,
            infra_retries=rollout.infra_retries,
            on_agent_error=None if on_error == "drop" else on_error,
        )


@asynccontextmanager
async def open_services(
    config: Config,
    program: Program,
    *,
    model: FoundModel,
    plugins: Plugins,
    run_dir: RunDir,
    learns: PresetSpec | None = None,
    say: Callable[[str], None],
) -> AsyncIterator[Services]:
    """Start engine and gateway, and the trainer where there is an algorithm to learn with.

    Whatever fails, all of them are closed.
    """
    async with AsyncExitStack() as stack:
        model_dir = model.directory
        engine = make_engine(config, model_dir, plugins=plugins, log_dir=run_dir.logs)
        trainer = None
        if learns is not None:
            if doubt := certificate.warning(model_dir, tool_format=config.gateway.tool_format):
                say(doubt)
            trainer = make_trainer(
                config,
                model_dir,
                plugins=plugins,
                preset=learns,
                log_dir=run_dir.logs,
                say=say,
            )
        stack.push_async_callback(_close_together, engine, trainer)
        agent = playable(program.agent, config.rollout, log_dir=run_dir.logs)
        if isinstance(agent, CommandAgent):
            stack.push_async_callback(agent.aclose)
        async with asyncio.TaskGroup() as starting:  # both load the model: side by side
            starting.create_task(engine.start())
            if isinstance(agent, AgentPool):
                stack.push_async_callback(agent.aclose)
                starting.create_task(agent.start())
            if trainer is not None:
                starting.create_task(trainer.start())
        served = await stack.enter_async_context(supervised(engine, say=say))
        if trainer is not None:
            await stack.enter_async_context(fail_with_ranks(trainer))
        rollout = config.rollout
        sampling = rollout_sampling(rollout)
        gateway = make_gateway(config, served, renderer=model.renderer, sampling=sampling)
        await gateway.start(host=config.gateway.host, port=config.gateway.port)
        stack.push_async_callback(gateway.aclose)
        rewards = await open_rewards(config, plugins, run_dir.logs, stack)
        stack.enter_context(short_collections())
        yield Services(config, run_dir, plugins, agent, model, served, gateway, rewards, trainer)


async def _close_together(engine: InferenceEngine, trainer: Trainer | None) -> None:
    """Side by side: each may be in the middle of something, and Ctrl-C has five seconds."""
    closing = [engine.aclose(), *([trainer.aclose()] if trainer is not None else [])]
    await asyncio.gather(*closing)


async def open_rewards(
    config: Config, plugins: Plugins, log_dir: Path, stack: AsyncExitStack
) -> RewardPool | None:
    specs = reward_specs(config, plugins)
    if not specs:
        return None
    rollout = config.rollout
    pool = RewardPool(
        specs, log_dir=log_dir, size=rollout.reward_workers, timeout_s=rollout.reward_timeout_s
    )
    return await stack.enter_async_context(pool)


def rollout_sampling(rollout: RolloutSection) -> SamplingPolicy:
    """How the turns of training episodes are sampled, and which of them are trained."""
    return SamplingPolicy(
        mode=rollout.sampling,
        temperature=rollout.temperature,
        trains_side_calls=rollout.side_calls == "train",
    )


@asynccontextmanager
async def fail_with_ranks(trainer: Trainer) -> AsyncIterator[None]:
    """A rank that dies ends the block, also while nothing is asked of it: rollouts can take long."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_watch_ranks(trainer), name="trainer watch")
        try:
            yield
        finally:
            watch.cancel()


async def _watch_ranks(trainer: Trainer) -> None:
    raise await trainer.died()


HANDOVER_TIMEOUT_S = 900.0
"""A server in the middle of its start is waited for."""


async def hand_to_trainer(engine: InferenceEngine) -> None:
    """Hold generation and free the engine's memory. No update may be on its way."""
    if engine.info.shares_device:
        async with waiting("engine: lends its memory", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.release_memory()


async def hand_to_engine(engine: InferenceEngine, trainer: Trainer) -> None:
    """After `publish`: what the trainer does not keep between steps is the engine's again."""
    if engine.info.shares_device:
        await trainer.release_memory()
        async with waiting("engine: takes its memory back", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.resume_memory()


async def update_and_resume(engine: InferenceEngine, update: WeightUpdate) -> None:
    """Serve `update`; requests that were held go on under it."""
    await engine.update_weights(update)
    if engine.info.shares_device:
        await engine.resume()
