"""Everything that runs beside the loop, started together and closed in reverse order."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.agent import AgentLike
from areal_sdk.config import Config
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits, certificate
from areal_sdk.loop.engines import make_engine
from areal_sdk.loop.gateways import make_gateway, rollout_sampling
from areal_sdk.loop.program import Program
from areal_sdk.loop.supervision import KeptEngine, kept, watched
from areal_sdk.loop.trainers import make_trainer
from areal_sdk.plugins import Plugins, validate_options
from areal_sdk.process.cpu import cpu_seconds
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.agent_pool import AgentPool, playable
from areal_sdk.rollout.episode import EpisodeRunner
from areal_sdk.rollout.reward_pool import RewardPool, RewardSpec
from areal_sdk.telemetry import RunDir
from areal_sdk.trainer.client import TrainerClient


@dataclass(frozen=True, slots=True)
class Rig:
    """A model being served (and, with a trainer, trained), and who plays on it."""

    config: Config
    run_dir: RunDir
    plugins: Plugins
    agent: AgentLike
    model_dir: Path
    engine: KeptEngine
    gateway: Gateway
    rewards: RewardPool | None
    trainer: TrainerClient | None

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far by this process, and by those of engine and trainer on this machine."""
        pids = {"main": os.getpid()}
        if self.engine.pid is not None:
            pids["engine"] = self.engine.pid
        if self.trainer is not None:
            pids |= {child.name: child.pid for child in self.trainer.children if child.pid}
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
async def open_rig(
    config: Config,
    program: Program,
    *,
    model_dir: Path,
    plugins: Plugins,
    run_dir: RunDir,
    train: bool,
    say: Callable[[str], None],
) -> AsyncIterator[Rig]:
    """Start engine, trainer and gateway for `config`; whatever fails, all of them are closed."""
    async with AsyncExitStack() as stack:
        engine = make_engine(config, model_dir, plugins=plugins, log_dir=run_dir.logs)
        trainer = None
        if train:
            if doubt := certificate.warning(model_dir, tool_format=config.gateway.tool_format):
                say(doubt)
            trainer = await make_trainer(
                config, model_dir, plugins=plugins, log_dir=run_dir.logs, say=say
            )
        stack.push_async_callback(_close_together, engine, trainer)
        agent = playable(program.agent, config.rollout, log_dir=run_dir.logs)
        async with asyncio.TaskGroup() as starting:  # both load the model: side by side
            starting.create_task(engine.start())
            if isinstance(agent, AgentPool):
                stack.push_async_callback(agent.aclose)
                starting.create_task(agent.start())
            if trainer is not None:
                starting.create_task(trainer.start())
        served = await stack.enter_async_context(kept(engine, say=say))
        if trainer is not None:
            await stack.enter_async_context(watched(trainer))
        rollout = config.rollout
        sampling = rollout_sampling(rollout)
        gateway = await in_thread(  # a tokenizer takes a second to load
            lambda: make_gateway(config, served, model_dir=model_dir, sampling=sampling),
            name="make gateway",
        )
        await gateway.start(host=config.gateway.host, port=config.gateway.port)
        stack.push_async_callback(gateway.aclose)
        rewards = await _open_rewards(config, plugins, run_dir.logs, stack)
        yield Rig(config, run_dir, plugins, agent, model_dir, served, gateway, rewards, trainer)


async def _close_together(engine: InferenceEngine, trainer: TrainerClient | None) -> None:
    """Side by side: each may be in the middle of something, and Ctrl-C has five seconds."""
    closing = [engine.aclose(), *([trainer.aclose()] if trainer is not None else [])]
    await asyncio.gather(*closing)


async def _open_rewards(
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


def reward_specs(config: Config, plugins: Plugins) -> list[RewardSpec]:
    """The configured rewards, found and with their options checked."""
    specs = []
    for name, weight in config.rewards.items():
        table = f"reward.{name}"
        reward = plugins.rewards.get(name)
        options = validate_options(reward, config.options.get(table, {}), table=table, skip=1)
        specs.append(RewardSpec.of(name, reward, weight=weight, options=options))
    return specs
