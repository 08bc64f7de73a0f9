"""The entry of a worker process that plays many episodes at once, on one event loop.

The sessions are in the main process, which records every turn. `play` is a streamed call of the
main process; its parts are the calls of the episode's `RemoteSession`, and their results arrive as
further calls.
"""

import asyncio
import contextlib
import contextvars
import os
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import AgentError, EpisodeError, boundary
from areal_sdk.process import JSON, Channel, ChannelClosedError, Request, clean_text
from areal_sdk.process.pools.background import BackgroundTasks
from areal_sdk.rollout.agents.adapters import Play, agent_title, as_play, guard, runs_in_thread
from areal_sdk.rollout.agents.deadline import CANCEL_GRACE_S
from areal_sdk.rollout.agents.environment import EnvironmentAgent
from areal_sdk.rollout.agents.http_client import shared_http_client, unconnected_is_infrastructure
from areal_sdk.rollout.agents.loop_holder import PLAYING, LoopHolder, record_tasks
from areal_sdk.rollout.agents.session_rpc import (
    PendingCalls,
    RemoteSession,
    pack_result,
    unpack_order,
)
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.telemetry.watchdog import Blockage, Watchdog

_RUNS_EVENT_LOOP = "main"  # read by areal_sdk.blame

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


class AgentWorker:
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
        self._pending = PendingCalls()
        self._playing: dict[int, tuple[asyncio.Task[None], Request]] = {}
        self._background = BackgroundTasks()
        self._turnstile = asyncio.Lock()
        """Lets one episode begin at a time, as in the runner: a first step often builds a client."""
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Receive and play until the channel closes."""
        loop = asyncio.get_running_loop()
        record_tasks(loop, self._holder)
        threading.Thread(
            target=self._receive, args=(loop,), name="agent-worker receiver", daemon=True
        ).start()
        self._channel.ready()
        after_s = self._say_blocked_after_s
        async with Watchdog(threshold_s=after_s, waiting_s=after_s, report=self._say_blocked):
            await self._closed.wait()
        tasks = [task for task, _ in self._playing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=EXIT_GRACE_S)
        with contextlib.suppress(TimeoutError):  # what plugins keep between episodes ends too
            async with asyncio.timeout(EXIT_GRACE_S):
                await loop.shutdown_asyncgens()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive in a thread: results must arrive even while the loop's thread waits for one."""
        try:
            while True:
                request = self._channel.receive()
                if request is None:
                    continue
                if request.method == "answer":
                    self._pending.settle(request)
                elif request.method == "play":
                    loop.call_soon_threadsafe(self._begin, request)
                else:
                    loop.call_soon_threadsafe(self._stop, request)
        except ChannelClosedError:
            self._pending.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(self._closed.set)

    def _begin(self, request: Request) -> None:
        number = request.payload["number"]
        context = contextvars.copy_context()
        context.run(PLAYING.set, number)
        task = asyncio.get_running_loop().create_task(
            self._play(request), name=f"episode {request.payload['id']}", context=context
        )
        self._playing[number] = (task, request)
        task.add_done_callback(lambda _: self._playing.pop(number))

    async def _play(self, request: Request) -> None:
        """Play one episode; its result or its error is the last part of the streamed answer."""
        session = RemoteSession(request, self._pending)
        try:
            async with boundary(AgentError, agent_title(self._name)):
                order = unpack_order(request.buffers[0])
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
                packed = pack_result(played)
        except EpisodeError as error:
            traceback.print_exc()
            self._fail(request, error)
        except asyncio.CancelledError:
            if (
                not request.cancelled
            ):  # the main process did not cancel it: the agent cancelled itself
                self._fail(
                    request, AgentError(f"{agent_title(self._name)}: it cancelled its own task")
                )
            raise
        else:
            request.finish({"ended": "result"}, [packed])
        finally:
            session.close()

    def _fail(self, request: Request, error: EpisodeError) -> None:
        message = clean_text(str(error))
        trace = clean_text(error.trace)
        request.finish(
            {"ended": "error", "kind": error.kind.value, "message": message, "trace": trace}
        )

    def _stop(self, request: Request) -> None:
        """Cancel an episode; the answer says whether its code is gone."""
        task, _ = self._playing.get(request.payload["number"], (None, None))
        if task is None:
            request.reply({"is_gone": True})
            return
        task.cancel()
        self._background.begin(self._report_end(task, request), name="report an end")

    async def _report_end(self, task: asyncio.Task[None], request: Request) -> None:
        await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        request.reply({"is_gone": task.done() and not self._leaves_threads})

    def _say_blocked(self, blockage: Blockage) -> None:
        """Say that the loop is blocked. The watchdog's thread calls this meanwhile."""
        number, _ = self._holder.read()
        _, request = self._playing.get(number, (None, None))
        if request is not None and not blockage.is_reminder:
            with contextlib.suppress(RuntimeError, ChannelClosedError):  # it has ended meanwhile
                request.emit({"blocked": f"{blockage.coroutine} ({blockage.place})"})
