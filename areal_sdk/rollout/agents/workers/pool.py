"""Agents in worker processes (`rollout.workers = N`), so that one agent cannot hold up another.

The runner plays the pool as it plays any agent. An agent that computes does not delay the gateway. An agent that blocks
its event loop or kills its process ends only the episodes of that process, and a new worker replaces it.
"""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any, Self

from areal_sdk.agent import AgentLike, EpisodeContext, RolloutWorkflow
from areal_sdk.config import RolloutSection
from areal_sdk.errors import CallTimeoutError, ConfigError, ProcessError, raised_here
from areal_sdk.process.memory import machine_mb
from areal_sdk.process.pools.supervision import Restarts, Slots, started_again
from areal_sdk.process.spec import MemoryLimit
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.agents.deadline import CANCEL_GRACE_S
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.process import AgentProcess
from areal_sdk.rollout.agents.workers.session_rpc import pack_order
from areal_sdk.types import Task

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 0.5
"""Seconds after which a lost worker is replaced, even if no episode asks for a worker."""
STOP_MARGIN_S = 10.0
"""Seconds that a worker gets to confirm the end of an episode, beyond a blocked event loop and the clean-up."""


class AgentPool(RolloutWorkflow):
    """`size` workers, each playing many episodes; `async with` starts and ends them."""

    def __init__(
        self,
        spec: AgentSpec,
        *,
        size: int,
        log_dir: Path,
        block_limit_s: float = 60.0,
        start_timeout_s: float = 120.0,
        memory: MemoryLimit | None = None,
    ) -> None:
        """A worker is killed when one step of an episode holds its event loop `block_limit_s`."""
        self.name = spec.name
        self._spec = spec
        self._log_dir = log_dir
        self._block_limit_s = block_limit_s
        self._start_timeout_s = start_timeout_s
        self._memory = memory
        self._numbers = itertools.count(1)
        self._slots = Slots(
            size,
            start=self._start_worker,
            replace=self._replace_worker,
            is_lost=lambda worker: worker.is_lost,
            name="agent",
        )
        self._is_failure_said = False
        """Whether the user was told why a worker did not start. The next worker that starts makes it False."""
        self._workers: set[AgentProcess] = set()
        """Every living worker, including the retired ones, which have no slot."""
        self._background = BackgroundTasks()
        self._is_closed = False

    @property
    def num_started(self) -> int:
        """Workers started so far; those beyond `size` are replacements."""
        return self._slots.num_started

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the workers that take episodes, by name."""
        return {worker.name: worker.pid for worker in self._workers if not worker.is_lost}

    async def start(self) -> None:
        """Start every worker; the first failure ends the others."""
        try:
            with raised_here(ConfigError):  # about the user's file
                await self._slots.start()
        except BaseException:
            await self.aclose()
            raise
        self._background.begin(self._watch(), name="watch agent workers")

    async def run_episode(self, task: Task, context: EpisodeContext) -> Any:
        """The agent's result, played in the worker with the fewest episodes."""
        order = pack_order(task, context)
        worker = await self._pick()
        number = next(self._numbers)
        try:
            return await worker.play(number, order, context)
        except asyncio.CancelledError:
            if not self._is_closed:
                self._background.begin(
                    self._stop(worker, number), name=f"stop {context.episode_id}"
                )
            raise
        finally:
            if worker.is_retired and not worker.aboard:
                self._background.begin(self._end(worker), name=f"end {worker.name}")

    async def aclose(self) -> None:
        """End every worker. Episodes still in them fail. Idempotent."""
        self._is_closed = True
        await self._background.cancel()
        await self._slots.aclose()
        await asyncio.gather(*(worker.aclose() for worker in self._workers))
        self._workers.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _start_worker(self, index: int) -> AgentProcess:
        worker = await AgentProcess.start(
            self._spec,
            name=f"agent-{index}",
            log_dir=self._log_dir,
            block_limit_s=self._block_limit_s,
            timeout_s=self._start_timeout_s,
            memory=self._memory,
        )
        self._workers.add(worker)
        self._is_failure_said = False
        return worker

    async def _replace_worker(self, index: int) -> AgentProcess:
        """A worker for a slot whose worker is lost. Raises after too many failures."""
        return await started_again(
            lambda: self._start_worker(index),
            restarts=Restarts(),
            what=f"agent-{index}",
            say=self._say_failure,
        )

    def _say_failure(self, why: str) -> None:
        if not self._is_failure_said:
            self._is_failure_said = True
            logger.warning("%s", why)

    async def _pick(self) -> AgentProcess:
        """The worker with the fewest episodes. If all are lost, waits for the first replacement."""
        try:
            workers = [] if self._is_closed else await self._slots.some()
        except Exception as exc:
            raise ProcessError(f"no worker for agent {self.name}: {exc}") from exc
        if not workers:
            raise ProcessError("the agent's workers are closed")
        return min(workers, key=lambda worker: len(worker.aboard))

    async def _watch(self) -> None:
        """Replace lost workers; kill a worker whose event loop one step holds for too long."""
        while True:
            await asyncio.sleep(min(WATCH_EVERY_S, self._block_limit_s / 4))
            self._slots.fill(retry=False)  # the next episode tries again what did not start
            for worker in list(self._workers):
                if worker.is_gone:
                    self._workers.discard(worker)
                elif (step := worker.step_over(self._block_limit_s)) is not None:
                    self._background.begin(
                        worker.kill_for_blocking(step), name=f"kill {worker.name}"
                    )

    async def _stop(self, worker: AgentProcess, number: int) -> None:
        """Cancel an episode. If its code ignores that, its worker gets no new episodes."""
        timeout_s = self._block_limit_s + CANCEL_GRACE_S + STOP_MARGIN_S
        try:
            is_gone = await worker.stop(number, timeout_s=timeout_s)
        except CallTimeoutError:
            await worker.kill_for_blocking()
            return
        except ProcessError:
            return  # the worker died, and the episode with it
        if not is_gone and not worker.is_retired:
            logger.info(
                "%s holds code that ignores cancellation: it gets no more episodes", worker.name
            )
            worker.is_retired = True
            if not worker.aboard:
                await self._end(worker)

    async def _end(self, worker: AgentProcess) -> None:
        await worker.aclose()
        self._workers.discard(worker)


def playable(agent: AgentLike | AgentSpec, rollout: RolloutSection, *, log_dir: Path) -> AgentLike:
    """The agent to play: made in this process, or a pool of workers (not started yet) that make it from its spec."""
    if not isinstance(agent, AgentSpec):
        return agent
    if not rollout.workers and not agent.is_isolated:
        return agent.make()
    size = max(1, rollout.workers)  # what is isolated cannot be made in this process
    return AgentPool(
        agent,
        size=size,
        log_dir=log_dir,
        block_limit_s=rollout.tool_timeout_s,
        memory=isolated_memory(rollout, size) if agent.is_isolated else None,
    )


def isolated_memory(rollout: RolloutSection, num_workers: int) -> MemoryLimit | None:
    """The memory limit of each isolated worker: unless it is set, all together may use half of the machine's memory."""
    limit_mb = rollout.isolated_memory_mb
    if limit_mb is None and (whole_mb := machine_mb()) is not None:
        limit_mb = max(1, whole_mb // 2 // num_workers)
    return None if limit_mb is None else MemoryLimit(limit_mb, "rollout.isolated_memory_mb")
