"""Rollout nodes as the dispatcher sees them: a runner whose episodes are played elsewhere.

    Dispatcher -- run(request) --> NodePool -- framed channel --> node: gateway, agents, rewards
                                      ^                             | HTTP, or the engine's frames
                                      +---- ended episodes ---------+        v
                                                                          engines

The episodes of a node that is lost are played again by another one, as the same episodes; a new node takes its place.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

from areal_sdk.errors import ConfigError, InfrastructureError, ProcessError, raised_here
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.launcher import Launcher
from areal_sdk.process import ProcessSpec
from areal_sdk.process.pools.broadcast import Broadcast
from areal_sdk.process.pools.supervision import RestartPolicy, Restarts, Slots, started_again
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.groups import TriagedEpisode, Truncated
from areal_sdk.rollout.nodes.episode_wire import Stage
from areal_sdk.rollout.nodes.link import SILENT_S, NodeLostError, Playing, RolloutNode
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.live.waits import waiting
from areal_sdk.types import Episode, ErrorKind, Outcome

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 0.5
"""Seconds after which a lost node is replaced, even if no episode asks for a node."""
START_TIMEOUT_S = 300.0
"""Seconds without any node after which a run gives up."""
RETRIES = RestartPolicy(max_restarts=10)
"""Number of failed starts, within ten minutes, after which the pool stops trying to replace a lost node."""

Ended = TypeVar("Ended")
"""The result of a runner: an `Episode`; of a runner of training, an `Episode` or a `TriagedEpisode`."""


class NodePool:
    """`size` rollout nodes, which the launcher of the run places. `start` them; `aclose` ends them."""

    def __init__(
        self,
        make_spec: Callable[[int, Mapping[str, Any]], ProcessSpec],
        *,
        size: int,
        launcher: Launcher,
        infra_retries: int = 2,
        longest_s: float = 600.0,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        """`make_spec` makes the process of a slot, given the state of the engine (`InferenceEngine.open_entrance`).

        Every episode ends within `longest_s`, retries included.
        """
        self._make_spec = make_spec
        self._launcher = launcher
        self._infra_retries = infra_retries
        self._longest_s = longest_s
        self._say = say
        self._background = BackgroundTasks()
        self._engine_state: Broadcast[RolloutNode, Mapping[str, Any]] = Broadcast(
            "news of the engine", {}, send=_tell, background=self._background, say=say
        )
        self._slots = Slots(
            size,
            start=self._start_node,
            replace=self._replace_node,
            is_lost=lambda node: node.is_lost,
            name="node",
        )
        self._nodes: set[RolloutNode] = set()
        """Nodes that were started and not closed; some of them may be lost."""
        self.size = size

    @property
    def num_started(self) -> int:
        """Nodes started so far; those beyond `size` are replacements."""
        return self._slots.num_started

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the nodes that play, by name."""
        return {node.name: node.pid for node in self._nodes if not node.is_lost}

    async def start(self, state: Mapping[str, Any]) -> None:
        """Start every node; the first failure ends the others. `state` tells the nodes how to reach the engine."""
        self._engine_state.latest = state
        try:
            with raised_here(ConfigError):  # about the user's file
                await self._slots.start()
        except BaseException:
            await self.aclose()
            raise
        self._background.begin(self._watch(), name="watch rollout nodes")

    def runner(self, *, split: str, sampling: SamplingPolicy) -> "NodeRunner[Episode]":
        """A runner of episodes of one stage, to be used with `async with`."""
        return NodeRunner(self, Stage(split, sampling))

    def training_runner(
        self, *, sampling: SamplingPolicy, truncated: Truncated, journal: Path | None = None
    ) -> "NodeRunner[Episode | TriagedEpisode]":
        """A runner of training episodes, which the nodes triage."""
        return NodeRunner(self, Stage("train", sampling, truncated, journal))

    async def tell(self, state: Mapping[str, Any]) -> None:
        """Tell every node the new state of the engine, and wait for the nodes that answer in time.

        A node that does not answer is told again, until it confirms this state or a newer one.
        """
        await self._engine_state.send(self._slots.workers, state)

    async def aclose(self) -> None:
        """End every node. Episodes still in them are lost. Idempotent."""
        await self._background.cancel()
        await self._slots.aclose()
        nodes, self._nodes = self._nodes, set()
        await asyncio.gather(*(node.aclose() for node in nodes))

    async def play(
        self, request: EpisodeRequest, stage: Stage, watch: Callable[[Playing], None]
    ) -> Episode | TriagedEpisode:
        """The episode, from the first node that does not die under it; `watch` is told of each attempt."""
        loop = asyncio.get_running_loop()
        while True:
            node = await self._pick()
            playing = Playing(request, stage, loop.create_future(), loop.time())
            watch(playing)
            try:
                return await node.play(playing)
            except InfrastructureError as exc:
                is_last = request.attempt >= self._infra_retries
                if is_last or not isinstance(exc, NodeLostError):
                    return _failed(request, str(exc), loop.time() - playing.began)
                request = replace(request, attempt=request.attempt + 1)

    async def _pick(self) -> RolloutNode:
        """The node with the fewest episodes. If all are lost, waits for the first replacement."""
        if (failure := self._slots.failure) is not None:
            raise ProcessError(f"a rollout node cannot be replaced: {failure}") from failure
        nodes = [node for node in self._nodes if not node.is_lost]
        if not nodes:
            try:
                async with waiting("rollouts: a node to play on", timeout_s=START_TIMEOUT_S):
                    nodes = await self._slots.some()
            except Exception as exc:
                raise ProcessError(f"no rollout node is left: {exc}") from exc
            if not nodes:
                raise ProcessError("the rollout nodes are closed")
        return min(nodes, key=lambda node: len(node.playing))

    async def _start_node(self, index: int) -> RolloutNode:
        known = self._engine_state.number
        (child,) = await self._launcher.launch([self._make_spec(index, self._engine_state.latest)])
        node = RolloutNode(child)
        try:
            await self._engine_state.catch_up(node, known)
        except BaseException:
            await node.aclose()
            raise
        self._nodes.add(node)
        return node

    async def _replace_node(self, index: int) -> RolloutNode:
        """A node for a slot whose node is lost. Raises after too many failures."""
        return await started_again(
            lambda: self._start_node(index),
            restarts=Restarts(RETRIES),
            what=f"node-{index}",
            say=lambda why: self._say(f"warning: {why}"),
        )

    async def _watch(self) -> None:
        """Replace lost nodes, and show what the living ones wait for."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for node in self._slots.workers:
                node.note_waits(longest_s=self._longest_s)
            for node in [node for node in self._nodes if node.is_lost]:
                self._nodes.discard(node)
                self._engine_state.forget(node)
                self._say(f"warning: {node.lost_because}: another node takes its place")
                self._background.begin(node.aclose(), name=f"close {node.name}")
            self._slots.fill(retry=False)


class NodeRunner(Generic[Ended]):
    """Plays the episodes of one stage on the nodes of a pool."""

    def __init__(self, pool: NodePool, stage: Stage) -> None:
        self._pool = pool
        self._stage = stage
        self._playing: dict[str, Playing] = {}

    async def run(self, request: EpisodeRequest) -> Ended:
        """Play an episode. Failures of the episode are in its outcome; only bugs raise."""

        def watch(playing: Playing) -> None:
            self._playing[request.id] = playing

        try:
            return cast(Ended, await self._pool.play(request, self._stage, watch))
        finally:
            self._playing.pop(request.id, None)

    def oldest_version(self, episode_id: str) -> int | None:
        """The version of the first token of a running episode, as its node last reported."""
        playing = self._playing.get(episode_id)
        return None if playing is None else playing.age

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the nodes running, because other runners use them."""


async def _tell(node: RolloutNode, state: Mapping[str, Any]) -> None:
    await node.tell(state, timeout_s=SILENT_S)


def _failed(request: EpisodeRequest, message: str, ran_s: float) -> Episode:
    return Episode(
        request.id,
        request.task,
        (),
        Outcome.failed(ErrorKind.INFRASTRUCTURE, message),
        group=request.group,
        sibling=request.sibling,
        epoch=request.epoch,
        attempt=request.attempt,
        duration_s=ran_s,
    )
