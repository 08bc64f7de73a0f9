"""The players of episodes in one process: agents, the gateway that they call, and rewards.

The main process has them, or each rollout node has; the code is the same.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.agent import AgentLike
from areal_sdk.config import Config, RolloutSection
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.services.gateway import make_gateway, rollout_sampling
from areal_sdk.models.families import max_context_of
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.agents.workers.pool import AgentPool, isolated_memory
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.routes import Route
from areal_sdk.telemetry.journal import Journal


@dataclass(frozen=True, slots=True)
class Players:
    """Plays the episodes of one agent on one gateway."""

    config: Config
    agent: AgentLike
    gateway: Gateway
    rewards: RewardPool | None
    longer_context: str
    """The setting that would make the context longer, if a setting limits it."""

    @property
    def pids(self) -> dict[str, int]:
        """The processes of agents, by name."""
        return self.agent.pids if isinstance(self.agent, AgentPool) else {}

    def runner(
        self, *, split: str, sampling: SamplingPolicy, journal: Journal | None = None
    ) -> EpisodeRunner:
        """A runner of this program's episodes, to be used with `async with`."""
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
            longer_context=self.longer_context,
            journal=journal,
        )


@asynccontextmanager
async def open_players(
    config: Config,
    agent: AgentLike,
    engine: InferenceEngine,
    *,
    renderer: Renderer,
    rewards: Sequence[RewardSpec],
    routes: Sequence[Route],
    log_dir: Path,
    run_dir: Path | None,
    host: str,
    port: int,
) -> AsyncIterator[Players]:
    """Open the gateway at `host` and `port`, and start the rewards. `agent` is ready to play. `run_dir` is given if
    callers come."""
    async with AsyncExitStack() as stack:
        sampling = rollout_sampling(config.rollout)
        gateway = make_gateway(
            config, engine, renderer=renderer, sampling=sampling, routes=routes, run_dir=run_dir
        )
        await gateway.start(host=host, port=port)
        stack.push_async_callback(gateway.aclose)
        pool = await open_rewards(rewards, config.rollout, log_dir, stack)
        yield Players(config, agent, gateway, pool, _longer_context(config, engine))


def _longer_context(config: Config, engine: InferenceEngine) -> str:
    limit = config.engine.max_context
    if limit is None:
        return ""
    own = max_context_of(Path(engine.info.model))
    if own is None or own <= limit:
        return ""
    return f"raise engine.max_context = {limit} (the model takes {own})"


async def open_rewards(
    specs: Sequence[RewardSpec], rollout: RolloutSection, log_dir: Path, stack: AsyncExitStack
) -> RewardPool | None:
    """The workers of the rewards, until `stack` ends; None if no rewards are configured."""
    if not specs:
        return None
    pool = RewardPool(
        specs,
        log_dir=log_dir,
        size=rollout.reward_workers,
        timeout_s=rollout.reward_timeout_s,
        isolated_memory=isolated_memory(rollout, rollout.reward_workers),
    )
    return await stack.enter_async_context(pool)
