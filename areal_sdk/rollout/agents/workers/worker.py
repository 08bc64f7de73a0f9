"""The entry of a worker process that plays many episodes at once, on one event loop.

The sessions are in the main process, which records every turn and answers the calls of each episode's `RemoteSession`.
"""

import asyncio
import contextlib
import contextvars
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import AgentError, EpisodeError, boundary
from areal_sdk.process import JSON, Channel, ChannelClosedError
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Answer, Bulk, MainClient, answer_until_closed
from areal_sdk.rollout.agents.adapters import Play, as_play, guard, runs_in_thread
from areal_sdk.rollout.agents.agent_errors import agent_title, unconnected_is_infrastructure
from areal_sdk.rollout.agents.deadline import CANCEL_GRACE_S
from areal_sdk.rollout.agents.environment import EnvironmentAgent
from areal_sdk.rollout.agents.http_client import shared_http_client
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.loop_holder import PLAYING, LoopHolder, record_tasks
from areal_sdk.rollout.agents.workers.session_rpc import (
    AgentCalls,
    Played,
    RemoteSession,
    SessionCalls,
    pack_result,
    unpack_order,
)
from areal_sdk.telemetry.live.watchdog import Blockage, Watchdog

_RUNS_EVENT_LOOP = "main"  # read by areal_sdk.errors.blame

EXIT_GRACE_S = 1.0
"""Time for episodes to clean up when the channel closes."""


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry. `args`: the agent's spec, the path of the `LoopHolder`, and when to report a blocked loop."""
    spec = AgentSpec(**args["agent"])
    agent = spec.make()
    http_client = None if isinstance(agent, EnvironmentAgent) else shared_http_client()
    worker = AgentWorker(
        channel,
        as_play(agent),
        name=spec.name,
        leaves_threads=runs_in_thread(agent),
        http_client=http_client,
        holder=LoopHolder(Path(args["loop_holder"])),
        say_blocked_after_s=args["say_blocked_after_s"],
    )
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(worker.run())
    except (SystemExit, KeyboardInterrupt) as exc:  # from a task that an agent started
        traceback.print_exc()
        os._exit(exc.code if isinstance(exc, SystemExit) and isinstance(exc.code, int) else 1)


class AgentWorker(AgentCalls):
    """Plays episodes until the main process closes the channel."""

    def __init__(
        self,
        channel: Channel,
        play: Play,
        *,
        name: str,
        leaves_threads: bool,
        http_client: Any,
        holder: LoopHolder,
        say_blocked_after_s: float,
    ) -> None:
        self._channel = channel
        self._agent = play
        self._name = name
        self._leaves_threads = leaves_threads
        self._http_client = http_client
        self._holder = holder
        self._say_blocked_after_s = say_blocked_after_s
        self._main = MainClient[SessionCalls](channel)
        self._playing: dict[int, asyncio.Task[Played]] = {}
        self._stopped: set[asyncio.Task[Played]] = set()
        """Episodes whose code the main process has cancelled."""
        self._turnstile = asyncio.Lock()
        """Lets one episode begin at a time, as in the runner: a first step often builds a client."""

    async def run(self) -> None:
        """Receive and play until the channel closes."""
        loop = asyncio.get_running_loop()
        record_tasks(loop, self._holder)
        self._channel.ready()
        after_s = self._say_blocked_after_s
        async with Watchdog(threshold_s=after_s, waiting_s=after_s, report=self._say_blocked):
            await answer_until_closed(self._channel, self)
        tasks = list(self._playing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=EXIT_GRACE_S)
        with contextlib.suppress(TimeoutError):  # what plugins keep between episodes ends too
            async with asyncio.timeout(EXIT_GRACE_S):
                await loop.shutdown_asyncgens()

    def play(self, number: int, episode_id: str, order: Bulk) -> Answer[Played]:
        context = contextvars.copy_context()
        context.run(PLAYING.set, number)
        task = asyncio.get_running_loop().create_task(
            self._play(number, view_of(order)), name=f"episode {episode_id}", context=context
        )
        self._playing[number] = task
        task.add_done_callback(lambda _: self._forget(number, task))
        return asyncio.shield(task)  # who gives up the call says `stop`

    async def stop(self, number: int) -> bool:
        task = self._playing.get(number)
        if task is None:
            return True
        self._stopped.add(task)
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        return task.done() and not self._leaves_threads

    def _forget(self, number: int, task: "asyncio.Task[Played]") -> None:
        del self._playing[number]
        self._stopped.discard(task)

    async def _play(self, number: int, packed_order: memoryview) -> Played:
        session = RemoteSession(number, self._main)
        try:
            async with boundary(AgentError, agent_title(self._name)):
                order = unpack_order(packed_order)
                context = EpisodeContext(
                    base_url=order.base_url,
                    api_key=order.api_key,
                    model=order.model,
                    episode_id=order.episode_id,
                    seed=order.seed,
                    split=order.split,
                    http_client=self._http_client,
                    session_generate=session.generate,
                    session_turns=session.turns,
                )
                with unconnected_is_infrastructure(order.base_url, agent_title(self._name)):
                    played = await guard(
                        self._agent, order.task, context, turnstile=self._turnstile
                    )
                return Played(pack_result(played))
        except EpisodeError as error:
            traceback.print_exc()
            return Played.failed(error)
        except asyncio.CancelledError:
            if asyncio.current_task() in self._stopped:
                raise
            own = AgentError(f"{agent_title(self._name)}: it cancelled its own task")
            return Played.failed(own)
        finally:
            session.close()

    def _say_blocked(self, blockage: Blockage) -> None:
        """Tell the main process that the loop is blocked. The watchdog calls this from its own thread."""
        number, _ = self._holder.read()
        if number in self._playing and not blockage.is_reminder:
            where = f"{blockage.coroutine} ({blockage.place})"
            with contextlib.suppress(ChannelClosedError):
                self._main.tell(SessionCalls.blocked, number, where)
