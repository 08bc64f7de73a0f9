"""A gateway whose callers fill a buffer."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.sessions.external import ExternalLimits
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerEpisodes, CallerTasks
from areal_sdk.rollout.groups import EpisodeObserver, Rejection, ScoredEpisode
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.telemetry import Ledger
from areal_sdk.types import Episode
from tests.gateway.conftest import StartGateway, model_dirs, start_gateway  # noqa: F401
from tests.toolbox.gateway_requests import call

KEY = "sk-alice-0123456789abcdef"


@dataclass
class Learning:
    """A gateway whose callers fill a buffer."""

    gateway: Gateway
    buffer: TrajectoryBuffer
    ledger: Ledger
    source: CallerEpisodes
    told: list[tuple[Episode, ScoredEpisode | Rejection]]
    kept: list[tuple[Episode, str]]
    """Untrained, with the split of each."""

    async def chat(self, name: str = "", **body: Any) -> Any:
        key = f"{KEY}/{name}" if name else KEY
        messages = [{"role": "user", "content": "Hi"}]
        status, answer, _ = await call(
            self.gateway, body={"model": "policy", "messages": messages, **body}, key=key
        )
        assert status == 200, answer
        return answer["id"]

    async def reward(self, reward: float, name: str = "", **body: Any) -> None:
        key = f"{KEY}/{name}" if name else KEY
        status, answer, _ = await call(
            self.gateway, "/v1/reward", {"reward": reward, **body}, key=key
        )
        assert status == 200, answer

    async def settled(self) -> None:
        """Every episode that ended is booked."""
        for _ in range(5):
            await asyncio.sleep(0)

    def fates(self) -> list[str]:
        return [v.reason if isinstance(v, Rejection) else "kept" for _, v in self.told]


@asynccontextmanager
async def learn(
    start: StartGateway,
    script: Any = "ok",
    *,
    batch: int = 4,
    group_size: int = 1,
    max_staleness: int = 1,
    reward_wait_s: float = 60.0,
    before: Callable[[Gateway], None] = lambda gateway: None,
    rewards: RewardPool | None = None,
    on_episode: EpisodeObserver | None = None,
) -> AsyncIterator[Learning]:
    """`before`: what callers do while the gateway listens and nobody learns yet."""
    gateway, _ = await start(
        script, users=[User("alice", KEY)], external=ExternalLimits(reward_wait_s=reward_wait_s)
    )
    before(gateway)
    ledger = Ledger()
    rollout = RolloutSection(
        batch=batch,
        group_size=group_size,
        max_staleness=max_staleness,
        max_inflight=64,
        stale="drop",
    )
    tasks = CallerTasks()
    buffer = TrajectoryBuffer(
        FlowRules(rollout), tasks=tasks, ledger=ledger, max_lost_in_a_row=sys.maxsize
    )
    told: list[tuple[Episode, ScoredEpisode | Rejection]] = []
    kept: list[tuple[Episode, str]] = []
    source = CallerEpisodes(
        buffer,
        sessions=gateway.external,
        tasks=tasks,
        rewards=rewards,
        on_episode=on_episode or (lambda *fate: told.append(fate)),
        on_untrained=lambda *episode: kept.append(episode),
    )
    learning = Learning(gateway, buffer, ledger, source, told, kept)
    async with source:
        yield learning
    ledger.check()
    assert ledger.running == 0
