"""One worker of agents as the main process sees it: episodes go in, results or errors come out."""

import asyncio
import contextlib
import logging
import signal
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import (
    AgentError,
    ChildDiedError,
    DeadlineError,
    EpisodeError,
    InfrastructureError,
    ProcessError,
)
from areal_sdk.process import Child, ProcessSpec, Reply, spawn
from areal_sdk.rollout.agents.adapters import PlayResult
from areal_sdk.rollout.agents.loop_holder import Mark, Step
from areal_sdk.rollout.agents.session_rpc import (
    error_of,
    pack_answer,
    unpack_request,
    unpack_result,
)
from areal_sdk.rollout.agents.spec import AgentSpec

logger = logging.getLogger(__name__)

WORKER = "areal_sdk.rollout.agents.worker:main"
SAY_BLOCKED_AFTER_S = 5.0
STACKS_S = 0.2
"""For a worker about to be killed to write to its log where it stands."""
ANSWER_TIMEOUT_S = 60.0
CLOSE_GRACE_S = 1.5
EPISODE_BACKSTOP_S = 7 * 86400.0
"""The runner's deadline ends an episode; this only bounds the wait."""

FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals by which the kernel (out of memory) or a person ends a process: no code is to blame."""


@dataclass(frozen=True, slots=True)
class Postmortem:
    """Why a worker is gone, and which of its episodes did it."""

    culprit: int | None
    """None: it cannot be known, or none of them did."""
    error: EpisodeError
    """The culprit's own."""
    what: str
    """What the others are told."""


class AgentProcess:
    """A worker and the episodes aboard."""

    def __init__(self, child: Child, mark: Mark, agent: str) -> None:
        self.aboard: set[int] = set()
        """Numbers of the episodes that play in it."""
        self.is_retired = False
        """It gets no new episodes, and ends with its last one."""
        self._child = child
        self._mark = mark
        self._agent = agent
        self._postmortem: Postmortem | None = None
        self._blocked_in = ""
        self._is_suspected = False

    @classmethod
    async def start(
        cls, spec: AgentSpec, *, name: str, log_dir: Path, block_limit_s: float, timeout_s: float
    ) -> Self:
        mark = Mark.create()
        arguments = {
            "agent": spec.as_json(),
            "mark": str(mark.path),
            "say_blocked_after_s": min(SAY_BLOCKED_AFTER_S, block_limit_s / 4),
        }
        try:
            child = await spawn(
                ProcessSpec(name, WORKER, arguments), log_dir=log_dir, start_timeout_s=timeout_s
            )
        finally:
            mark.forget_path()
        return cls(child, mark, spec.name)

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
        """Whether another must take its place."""
        return self.is_gone or self.is_condemned or self.is_retired

    def step_over(self, limit_s: float) -> Step | None:
        """The step that it has been in for longer than `limit_s`, unless that is dealt with."""
        if self.is_condemned or self._is_suspected:
            return None
        step = self._mark.read()
        return step if _age_s(step) > limit_s else None

    async def play(self, number: int, order: bytes, context: EpisodeContext) -> PlayResult:
        """What the agent returned. Raises `EpisodeError`, as playing it here would."""
        self.aboard.add(number)
        answers = _Answers(self._child, context)
        parts = self._child.stream(
            "play",
            {"number": number, "id": context.episode_id},
            [order],
            idle_timeout_s=EPISODE_BACKSTOP_S,
        )
        try:
            async with aclosing(parts):
                async for part in parts:
                    if "ended" in part.payload:
                        return _ended(part)
                    if "blocked" in part.payload:
                        self._note_blocked(part.payload["blocked"])
                    else:
                        answers.take(part)
            raise InfrastructureError(f"{self.name} ended an episode without a result")
        except ChildDiedError as death:
            raise self._error_for(number, death) from death
        finally:
            self.aboard.discard(number)
            await answers.aclose()

    async def stop(self, number: int, *, timeout_s: float) -> bool:
        """Cancel an episode; returns whether its code is gone."""
        reply = await self._child.call("stop", {"number": number}, timeout_s=timeout_s)
        return bool(reply.payload["is_gone"])

    async def kill_for_blocking(self, step: Step | None = None) -> None:
        """End it with all aboard, because it does not come back from a step.

        Nothing happens if it has come back from `step`; None: from whatever it is at.
        """
        self._is_suspected = True
        try:
            if step is not None and self._mark.read() != step:
                return
            self._child.signal(signal.SIGUSR1)  # faulthandler writes every stack to the log
            await asyncio.sleep(STACKS_S)
            if step is not None and self._mark.read() != step:
                return
            self._condemn(step or self._mark.read())
        finally:
            self._is_suspected = False
        with contextlib.suppress(ProcessError):
            await self._child.kill()

    def _condemn(self, step: Step) -> None:
        culprit, _ = step
        where = f" in {self._blocked_in}" if self._blocked_in else ""
        blocked = (
            f"agent {self._agent}: it held the event loop of {self.name} (pid {self.pid}) for "
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

    def _note_blocked(self, where: str) -> None:
        self._blocked_in = where
        logger.warning(
            "%s: %s holds up the other episodes of its worker (%d of them)",
            self.name,
            where,
            len(self.aboard) - 1,
        )

    def _error_for(self, number: int, death: ChildDiedError) -> EpisodeError:
        if self._postmortem is None:
            self._postmortem = self._examine(death)
        if number == self._postmortem.culprit:
            return self._postmortem.error
        return InfrastructureError(self._postmortem.what)

    def _examine(self, death: ChildDiedError) -> Postmortem:
        """Whose code ran when it died. One aboard needs no mark."""
        end = self._child.exited.result()
        number, _ = self._mark.read()
        culprit: int | None = number or None
        if end.signal in FROM_OUTSIDE:
            culprit = None
        elif culprit is None and len(self.aboard) == 1:
            (culprit,) = self.aboard
        logger.warning("%s; %d episodes were in it", death, len(self.aboard))
        return Postmortem(
            culprit,
            AgentError(f"agent {self._agent} took its worker down: {death}"),
            f"its worker died under it: {death}",
        )


def _age_s(step: Step) -> float:
    """How long the step has taken so far; 0 where it is none."""
    number, since = step
    return time.monotonic() - since if number and since else 0.0


class _Answers:
    """Answers what one episode in a worker asks, from its session here."""

    def __init__(self, child: Child, context: EpisodeContext) -> None:
        self._child = child
        self._context = context
        self._open: dict[int, asyncio.Task[None]] = {}

    def take(self, asked: Reply) -> None:
        question = asked.payload["question"]
        if asked.payload["ask"] == "withdraw":
            if (task := self._open.get(question)) is not None:
                task.cancel()
            return
        task = asyncio.create_task(self._answer(question, asked), name=f"answer {question}")
        self._open[question] = task
        task.add_done_callback(lambda _: self._open.pop(question))

    async def aclose(self) -> None:
        """Nobody waits any more: what is being sampled is cancelled."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, question: int, asked: Reply) -> None:
        try:
            if asked.payload["ask"] == "turns":
                packed = pack_answer(self._context.turns[asked.payload["since"] :])
            else:
                packed = pack_answer(
                    await self._context.generate(**unpack_request(asked.buffers[0]))
                )
        except Exception as exc:  # noqa: BLE001 - it is raised where the question came from
            packed = pack_answer(error=exc)
        with contextlib.suppress(ProcessError):  # gone: whoever reads the episode is told why
            await self._child.call(
                "answer", {"question": question}, [packed], timeout_s=ANSWER_TIMEOUT_S
            )


def _ended(part: Reply) -> PlayResult:
    if part.payload["ended"] == "error":
        told = part.payload
        raise error_of(told["kind"], told["message"], trace=told["trace"])
    return unpack_result(part.buffers[0])
