"""The three ways to have episodes: agents here, agents in nodes, callers of gateway processes.

The settings choose one way (`choose_playing`). The parts of this way that need no engine start together with engine and
trainer. The way opens once the engine samples.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from areal_sdk.backends.supervised import SupervisedEngine
from areal_sdk.config import Config
from areal_sdk.gateway import Gateway, SamplingPolicy
from areal_sdk.gateway.sessions.external import ExternalSessions
from areal_sdk.launcher import Launcher
from areal_sdk.loop.plan.models import FoundModel
from areal_sdk.loop.plan.parts import reward_specs
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.services.gateway import rollout_sampling, routes_of
from areal_sdk.loop.services.gateway_process import open_gateways
from areal_sdk.loop.services.node import node_specs
from areal_sdk.loop.services.players import Players, open_players, open_rewards
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.workers.pool import AgentPool, playable
from areal_sdk.rollout.dispatcher import WatchesEpisodes
from areal_sdk.rollout.gateways.pool import GatewayPool
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.rollout.nodes.pool import NodePool
from areal_sdk.rollout.tasks import PlaysEpisodes
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.journal import Journal


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The things that the services of a run are made from."""

    config: Config
    program: Program
    model: FoundModel
    plugins: Plugins
    run_dir: RunDir
    launcher: Launcher
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Callers:
    """The gateway that callers reach, and the rewards that judge their episodes."""

    gateway: Gateway | GatewayPool
    rewards: RewardPool | None
    """Workers that judge episodes whose caller posted no reward."""

    @property
    def sessions(self) -> ExternalSessions | GatewayPool:
        return self.gateway if isinstance(self.gateway, GatewayPool) else self.gateway.external


class PlayingSide(ABC):
    """Plays episodes once the engine samples. Each way to play has the methods that are possible in its place."""

    @property
    @abstractmethod
    def pids(self) -> Mapping[str, int]:
        """The processes that play, by name."""

    @property
    def calls(self) -> Mapping[str, int]:
        """Numbers of calls of this process's gateway that the engine has now, and that it has answered."""
        return {}

    def runner(
        self, *, split: str, sampling: SamplingPolicy
    ) -> AbstractAsyncContextManager[PlaysEpisodes]:
        """Plays this program's episodes: `async with` it."""
        raise AssertionError("callers play when they like")

    def training_runner(
        self, journal: Journal | None
    ) -> AbstractAsyncContextManager[WatchesEpisodes]:
        """Plays training episodes: `async with` it. Nodes also decide which of them can be trained."""
        raise AssertionError("callers play when they like")

    @property
    def callers(self) -> Callers:
        raise AssertionError("callers reach this process, or processes of gateways")


class WayToPlay(ABC):
    """One of the three ways to play, before the engine is up."""

    async def start(self) -> None:
        """Start what needs no engine."""
        return

    async def aclose(self) -> None:
        """End what `start` started."""
        return

    @abstractmethod
    def open(self, engine: SupervisedEngine) -> AbstractAsyncContextManager[PlayingSide]:
        """Play on `engine` within the block."""


def choose_playing(made_of: Blueprint) -> WayToPlay:
    config = made_of.config
    if config.serve.learn and config.serve.processes > 1:
        return CallersElsewhere(made_of)
    return AgentsInNodes(made_of) if config.rollout.nodes > 1 else AgentsHere(made_of)


class AgentsHere(WayToPlay):
    """Agents, the gateway and rewards belong to the main process. Callers may come to its gateway too."""

    def __init__(self, made_of: Blueprint) -> None:
        self._made_of = made_of
        self._agent = playable(
            made_of.program.agent, made_of.config.rollout, log_dir=made_of.run_dir.logs
        )

    async def start(self) -> None:
        if isinstance(self._agent, AgentPool):
            await self._agent.start()

    async def aclose(self) -> None:
        if isinstance(self._agent, CommandAgent | AgentPool):
            await self._agent.aclose()

    @asynccontextmanager
    async def open(self, engine: SupervisedEngine) -> AsyncIterator[PlayingSide]:
        made_of, config = self._made_of, self._made_of.config
        async with open_players(
            config,
            self._agent,
            engine,
            renderer=made_of.model.renderer,
            rewards=reward_specs(config, made_of.plugins),
            routes=routes_of(made_of.plugins),
            log_dir=made_of.run_dir.logs,
            run_dir=made_of.run_dir.path if config.serve.learn else None,
            host=config.gateway.host,
            port=config.gateway.port,
        ) as players:
            yield _PlayingHere(players)


@dataclass(frozen=True, slots=True)
class _PlayingHere(PlayingSide):
    players: Players

    @property
    def pids(self) -> Mapping[str, int]:
        return self.players.pids

    @property
    def calls(self) -> Mapping[str, int]:
        return self.players.gateway.calls

    def runner(
        self, *, split: str, sampling: SamplingPolicy
    ) -> AbstractAsyncContextManager[PlaysEpisodes]:
        return self.players.runner(split=split, sampling=sampling)

    def training_runner(
        self, journal: Journal | None
    ) -> AbstractAsyncContextManager[WatchesEpisodes]:
        sampling = rollout_sampling(self.players.config.rollout)
        return self.players.runner(split="train", sampling=sampling, journal=journal)

    @property
    def callers(self) -> Callers:
        return Callers(self.players.gateway, self.players.rewards)


@dataclass(frozen=True, slots=True)
class AgentsInNodes(WayToPlay):
    """Agents, gateways and rewards belong to rollout nodes, which sample from the engine without this process."""

    made_of: Blueprint

    @asynccontextmanager
    async def open(self, engine: SupervisedEngine) -> AsyncIterator[PlayingSide]:
        made_of, config = self.made_of, self.made_of.config
        rollout = config.rollout
        nodes: NodePool

        async def tell(state: Mapping[str, Any]) -> None:
            await nodes.tell(state)

        entrance = await engine.open_entrance(tell, host=made_of.launcher.host)
        nodes = NodePool(
            node_specs(
                config,
                made_of.program,
                model=made_of.model,
                rewards=reward_specs(config, made_of.plugins),
                log_dir=made_of.run_dir.logs,
                info=engine.info,
                entrance=entrance,
            ),
            size=rollout.nodes,
            launcher=made_of.launcher,
            infra_retries=rollout.infra_retries,
            longest_s=rollout.episode_timeout_s * (1 + rollout.infra_retries),
            say=made_of.say,
        )
        await nodes.start(entrance.state)
        try:
            yield _PlayingInNodes(config, nodes)
        finally:
            await nodes.aclose()


@dataclass(frozen=True, slots=True)
class _PlayingInNodes(PlayingSide):
    config: Config
    nodes: NodePool

    @property
    def pids(self) -> Mapping[str, int]:
        return self.nodes.pids

    def runner(
        self, *, split: str, sampling: SamplingPolicy
    ) -> AbstractAsyncContextManager[PlaysEpisodes]:
        return self.nodes.runner(split=split, sampling=sampling)

    def training_runner(
        self, journal: Journal | None
    ) -> AbstractAsyncContextManager[WatchesEpisodes]:
        rollout = self.config.rollout
        return self.nodes.training_runner(
            sampling=rollout_sampling(rollout),
            truncated=rollout.truncated,
            journal=None if journal is None else journal.directory.absolute(),
        )


@dataclass(frozen=True, slots=True)
class CallersElsewhere(WayToPlay):
    """Callers bring the episodes to gateway processes. Rewards belong to the main process."""

    made_of: Blueprint

    @asynccontextmanager
    async def open(self, engine: SupervisedEngine) -> AsyncIterator[PlayingSide]:
        made_of, config = self.made_of, self.made_of.config
        logs = made_of.run_dir.logs
        async with AsyncExitStack() as stack:
            rewards = await open_rewards(
                reward_specs(config, made_of.plugins), config.rollout, logs, stack
            )
            gateways = await stack.enter_async_context(
                open_gateways(
                    config,
                    engine,
                    model=made_of.model,
                    log_dir=logs,
                    run_dir=made_of.run_dir.path,
                    say=made_of.say,
                )
            )
            yield _FollowingCallers(gateways, rewards)


@dataclass(frozen=True, slots=True)
class _FollowingCallers(PlayingSide):
    gateways: GatewayPool
    rewards: RewardPool | None

    @property
    def pids(self) -> Mapping[str, int]:
        return self.gateways.pids

    @property
    def callers(self) -> Callers:
        return Callers(self.gateways, self.rewards)
