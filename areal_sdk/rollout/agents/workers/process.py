"""One agent worker, from the side of the main process: plays episodes in it, and says why it died."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import (
    AgentError,
    ChildDiedError,
    DeadlineError,
    EnvError,
    EpisodeError,
    InfrastructureError,
    ProcessError,
)
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Answer, Bulk, Client, LoopAnswering
from areal_sdk.process.spec import MemoryLimit
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.agents.adapters import PlayResult
from areal_sdk.rollout.agents.agent_errors import agent_title
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.loop_holder import LoopHolder, Step
from areal_sdk.rollout.agents.workers.session_rpc import (
    EPISODE_BACKSTOP_S,
    AgentCalls,
    Packed,
    SessionCalls,
    pack_call_result,
    unpack_request,
)
from areal_sdk.types import Turn, pack_turns

logger = logging.getLogger(__name__)

WORKER = "areal_sdk.rollout.agents.workers.worker:main"
SAY_BLOCKED_AFTER_S = 5.0
"""Seconds for which a step may hold a worker's event loop before a warning names the line of code."""
STACKS_S = 0.2
"""Time for a worker that is about to be killed to write its stacks to the log."""
CLOSE_GRACE_S = 1.5
"""Seconds for a worker without episodes to end by itself before it is killed."""

FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals by which the kernel (out of memory) or a person ends a process: no code is to blame."""


@dataclass(frozen=True, slots=True)
class Postmortem:
    """The cause of a worker's death, and the episode that is to blame."""

    culprit: int | None
    """Number of that episode; None if it is unknown, or no episode caused it."""
    error: EpisodeError
    """The error of the culprit."""
    for_others: str
    """The message of the other episodes' errors."""


@dataclass(frozen=True, slots=True)
class _Aboard:
    """An episode in a worker, and the calls of its session that are being answered."""

    context: EpisodeContext
    calls: BackgroundTasks = field(default_factory=BackgroundTasks)


class AgentProcess(SessionCalls):
    """A worker and the episodes that play in it. Answers their calls from their sessions."""

    def __init__(self, child: Child, holder: LoopHolder, spec: AgentSpec) -> None:
        self.aboard: dict[int, _Aboard] = {}
        """The episodes that play in the worker, by number."""
        self.is_retired = False
        """Whether the worker gets no new episodes, and ends with its last one."""
        self._child = child
        self._worker = Client[AgentCalls](child)
        child.on_call = LoopAnswering(self).answer
        self._holder = holder
        self._agent = spec.name
        self._is_isolated = spec.is_isolated
        self._postmortem: Postmortem | None = None
        self._blocked_in = ""
        self._is_suspected = False

    @classmethod
    async def start(
        cls,
        spec: AgentSpec,
        *,
        name: str,
        log_dir: Path,
        block_limit_s: float,
        timeout_s: float,
        memory: MemoryLimit | None = None,
    ) -> Self:
        holder = LoopHolder.create()
        arguments = {
            "agent": spec.as_json(),
            "loop_holder": str(holder.path),
            "say_blocked_after_s": min(SAY_BLOCKED_AFTER_S, block_limit_s / 4),
        }
        try:
            worker = ProcessSpec(name, WORKER, arguments, python=spec.python, memory=memory)
            child = await spawn(worker, log_dir=log_dir, start_timeout_s=timeout_s)
        finally:
            holder.forget_path()
        return cls(child, holder, spec)

    @property
    def name(self) -> str:
        return self._child.name

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_gone(self) -> bool:
        return self._child.exited.done()

    @property
    def is_condemned(self) -> bool:
        return self._postmortem is not None

    @property
    def is_lost(self) -> bool:
        """Whether a new worker must replace this one."""
        return self.is_gone or self.is_condemned or self.is_retired

    def step_over(self, limit_s: float) -> Step | None:
        """The step that has held the loop for longer than `limit_s`; None if there is none, or if the worker is being killed."""
        if self.is_condemned or self._is_suspected:
            return None
        step = self._holder.read()
        return step if _age_s(step) > limit_s else None

    async def play(self, number: int, order: bytes, context: EpisodeContext) -> PlayResult:
        """The agent's result. Raises `EpisodeError`, as playing in this process would."""
        episode = self.aboard[number] = _Aboard(context)
        try:
            played = await self._worker.call(
                AgentCalls.play, number, context.episode_id, order, timeout_s=EPISODE_BACKSTOP_S
            )
            return played.unpack()
        except ChildDiedError as death:
            raise self._error_for(number, death) from death
        finally:
            del self.aboard[number]
            await episode.calls.cancel()

    async def stop(self, number: int, *, timeout_s: float) -> bool:
        """Cancel an episode; returns whether its code is gone."""
        return await self._worker.call(AgentCalls.stop, number, timeout_s=timeout_s)

    # calls of the worker

    def generate(self, number: int, request: Bulk) -> Answer[Packed]:
        episode = self._episode(number)
        answering = _packed(episode.context.generate(**unpack_request(view_of(request))))
        task = asyncio.create_task(answering, name=f"generate for {number}")
        episode.calls.keep(task)
        return task

    def turns(self, number: int, since: int) -> Packed:
        return Packed(pack_call_result(pack_turns(self._episode(number).context.turns[since:])))

    def blocked(self, number: int, where: str) -> None:
        self._blocked_in = where
        logger.warning(
            "%s: %s holds up the other episodes of its worker (%d of them)",
            self.name,
            where,
            len(self.aboard) - 1,
        )

    def _episode(self, number: int) -> _Aboard:
        """The episode with a number. InfrastructureError for an episode that is over."""
        if (episode := self.aboard.get(number)) is None:
            raise InfrastructureError(f"episode {number} of {self.name} is over")
        return episode

    async def kill_for_blocking(self, step: Step | None = None) -> None:
        """Kill the worker, with all its episodes, because a step blocks its event loop.

        Does nothing if `step` has ended meanwhile. Without `step`, the current one is blamed.
        """
        self._is_suspected = True
        try:
            if step is not None and self._holder.read() != step:
                return
            self._child.signal(signal.SIGUSR1)  # faulthandler writes every stack to the log
            await asyncio.sleep(STACKS_S)
            if step is not None and self._holder.read() != step:
                return
            self._condemn(step or self._holder.read())
        finally:
            self._is_suspected = False
        with contextlib.suppress(ProcessError):
            await self._child.kill()

    def _condemn(self, step: Step) -> None:
        culprit, _ = step
        where = f" in {self._blocked_in}" if self._blocked_in else ""
        blocked = (
            f"{agent_title(self._agent)}: it held the event loop of {self.name} (pid {self.pid}) for "
            f"{_age_s(step):.0f} s{where}"
        )
        self._postmortem = Postmortem(
            culprit or None,
            DeadlineError(
                f"{blocked}: use an async call or asyncio.to_thread, or raise "
                f"rollout.tool_timeout_s; log: {self._child.log_path}"
            ),
            f"{self.name} (pid {self.pid}) was killed because another episode held its event loop",
        )
        logger.warning(
            "%s, so it was killed with %d episodes; log: %s",
            blocked,
            len(self.aboard),
            self._child.log_path,
        )

    async def aclose(self) -> None:
        await self._child.aclose(grace_s=CLOSE_GRACE_S)

    def _error_for(self, number: int, death: ChildDiedError) -> EpisodeError:
        if self._postmortem is None:
            self._postmortem = self._examine(death)
        if number == self._postmortem.culprit:
            return self._postmortem.error
        return InfrastructureError(self._postmortem.for_others)

    def _examine(self, death: ChildDiedError) -> Postmortem:
        """Find the episode to blame: the one whose code ran when the worker died, or the only one that it had."""
        end = self._child.exited.result()
        number, _ = self._holder.read()
        culprit: int | None = number or None
        if end.signal in FROM_OUTSIDE and not end.limit:
            culprit = None
        elif culprit is None and len(self.aboard) == 1:
            (culprit,) = self.aboard
        logger.warning("%s; %d episodes were in it", death, len(self.aboard))
        fall = f"took its worker down: {death}"
        return Postmortem(
            culprit,
            EnvError(f"environment {self._agent} {fall}")
            if self._is_isolated
            else AgentError(f"{agent_title(self._agent)} {fall}"),
            f"its worker died under it: {death}",
        )


def _age_s(step: Step) -> float:
    """Seconds that the step has taken so far; 0 if no step runs."""
    number, since = step
    return time.monotonic() - since if number and since else 0.0


async def _packed(turn: Awaitable[Turn]) -> Packed:
    """The packed turn, or the packed error of it."""
    try:
        return Packed(pack_call_result(await turn))
    except Exception as exc:  # noqa: BLE001 - it is raised in the caller
        return Packed(pack_call_result(error=exc))
