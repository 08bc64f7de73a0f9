"""One rollout node, from the side of the main process: sends requests, takes episodes, notices its end."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from areal_sdk.errors import ChildDiedError, InfrastructureError, ProcessError, RolloutError
from areal_sdk.process import Child, ChildReply
from areal_sdk.process.services import Answer, Client
from areal_sdk.process.services.contract import method_of
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.groups import TriagedEpisode
from areal_sdk.rollout.nodes.episode_wire import (
    NodeCalls,
    Orders,
    Stage,
    pack_request,
    unpack_episode,
)
from areal_sdk.rollout.nodes.triaged import unpack_triaged
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.live.waits import note_waits
from areal_sdk.types import Episode

A = TypeVar("A")
logger = logging.getLogger(__name__)

SILENT_S = 300.0
"""Seconds after which a node whose event loop reports nothing is killed, and replaced. Agents may block the loop
for a while, as they may in the main process."""
SEND_AFTER_S = 0.05
"""Seconds in which requests are collected and sent together. The same holds for acknowledgements."""
TAKES_WITHIN_S = 60.0
"""Seconds within which a node takes a request. It does so in a thread, even while an agent blocks its event loop."""
CLOSE_GRACE_S = 3.0
"""Seconds for a node to end its agents before it is killed."""


class NodeLostError(InfrastructureError):
    """The node of an episode is gone. Another node can play the episode."""


@dataclass(slots=True, eq=False)
class Playing:
    """An episode that a node plays."""

    request: EpisodeRequest
    stage: Stage
    ended: "asyncio.Future[Episode | TriagedEpisode]"
    began: float
    age: int | None = None
    """Version of the episode's first token, as last reported."""


class RolloutNode:
    """A node and the episodes that it plays. Messages wait up to 50 ms, to be sent together."""

    def __init__(self, child: Child) -> None:
        self.playing: dict[int, Playing] = {}
        self.num_played = 0
        self._child = child
        self._calls = Client[NodeCalls](child)
        self._numbers = itertools.count(1)
        self._orders: list[tuple[int, Stage, bytes]] = []
        self._acknowledged: list[int] = []
        self._stops: list[int] = []
        self._is_flushing = False
        self._lost = ""
        """The reason why the node has stopped playing; empty while it plays."""
        self._waits: list[tuple[str, float, float]] = []
        self._background = BackgroundTasks()
        self._background.begin(self._read_reports(), name=f"reports of {child.name}")

    @property
    def name(self) -> str:
        return self._child.name

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_lost(self) -> bool:
        return bool(self._lost)

    @property
    def lost_because(self) -> str:
        return self._lost

    def note_waits(self, *, longest_s: float) -> None:
        """Show what the main process waits for: the node's episodes, each of which ends within `longest_s`, and the
        waits that it reported."""
        waits = list(self._waits)
        if self.playing:
            first = next(iter(self.playing.values()))
            lasted_s = asyncio.get_running_loop().time() - first.began
            what = f"{len(self.playing)} episodes, the oldest is {first.request.id}"
            waits.append((what, lasted_s, longest_s))
        note_waits(self.name, waits)

    async def play(self, playing: Playing) -> Episode | TriagedEpisode:
        """The episode. `NodeLostError` if the node is gone before it has ended."""
        if self._lost:
            raise NodeLostError(self._lost)
        number = next(self._numbers)
        self._orders.append((number, playing.stage, pack_request(playing.request)))
        self.playing[number] = playing
        self._flush_soon()
        try:
            return await playing.ended
        except asyncio.CancelledError:
            self._stops.append(number)
            self._flush_soon()
            raise
        finally:
            self.playing.pop(number, None)

    async def tell(self, state: Mapping[str, Any], *, timeout_s: float) -> None:
        """Tell the node the engine's state, and wait up to `timeout_s` until it confirms. After that time the message is
        cancelled, so that a node that stood still does not act on an old state later."""
        await self._calls.call(NodeCalls.engine_state, state, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """End the node. Episodes that it plays are lost."""
        self._lose("it was closed")
        await self._background.cancel()
        await self._child.aclose(grace_s=CLOSE_GRACE_S)

    # sending

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_later(SEND_AFTER_S, self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._lost:
            return
        orders, self._orders = self._orders, []
        acknowledged, self._acknowledged = self._acknowledged, []
        stops, self._stops = self._stops, []
        if orders or acknowledged:
            places = {stage: place for place, stage in enumerate({o[1]: None for o in orders})}
            episodes = [(number, places[stage], packed) for number, stage, packed in orders]
            message = Orders([*places], episodes, acknowledged)
            self._background.begin(self._send(NodeCalls.play, message), name="orders")
        if stops:
            self._background.begin(self._send(NodeCalls.stop, stops), name="stops")

    async def _send(self, method: Callable[[NodeCalls, A], Answer[None]], message: A) -> None:
        try:
            await self._calls.call(method, message, timeout_s=TAKES_WITHIN_S)
        except ChildDiedError:
            pass  # the reader of the reports says so
        except ProcessError as exc:
            await self._give_up(str(exc))

    # receiving

    async def _read_reports(self) -> None:
        try:
            # As they come: the buffers of an episode are read one by one, and may be damaged.
            call = method_of(NodeCalls.reports)
            reports = self._child.stream(call.name, *call.called(), idle_timeout_s=SILENT_S)
            async with aclosing(reports):
                async for report in reports:
                    self._take(report)
            raise ProcessError(f"{self.name} ended its reports")
        except ChildDiedError as death:
            self._lose(str(death))
        except ProcessError as exc:
            await self._give_up(str(exc))
        except Exception as exc:
            logger.exception("a report of %s", self.name)
            await self._give_up(f"its report cannot be read: {exc!r}")

    async def _give_up(self, why: str) -> None:
        """End a node that does not answer, and have its episodes played elsewhere."""
        self._lose(why)
        await self._child.kill()

    def _take(self, report: ChildReply) -> None:
        place = 0
        for number, count in report.payload["ended"]:
            self._acknowledged.append(number)
            buffers = report.buffers[place : place + count]
            place += count
            playing = self.playing.pop(number, None)  # None: it was stopped, or is told again
            if playing is not None and not playing.ended.done():
                try:
                    self._settle(playing, buffers)
                except Exception as exc:  # a bug: the run ends with it, and the others are taken
                    logger.exception("episode %s of %s", playing.request.id, self.name)
                    playing.ended.set_exception(exc)
        if self._acknowledged:
            self._flush_soon()
        for number, age in report.payload.get("ages", ()):
            if (playing := self.playing.get(number)) is not None:
                playing.age = age
        if (waits := report.payload.get("waits")) is not None:
            self._waits = waits

    def _settle(self, playing: Playing, buffers: Sequence[memoryview]) -> None:
        self.num_played += 1
        if len(buffers) == 1:
            text = bytes(buffers[0]).decode()
            playing.ended.set_exception(RolloutError(f"{self.name}: {text}"))
            return
        is_whole = playing.stage.truncated is None
        unpack = unpack_episode if is_whole else unpack_triaged
        playing.ended.set_result(unpack(playing.request, buffers))

    def _lose(self, why: str) -> None:
        """Fail the episodes that the node plays, and all that it is asked to play later."""
        if self._lost:
            return
        self._lost = f"rollout node is gone: {why}"
        note_waits(self.name, ())
        lost, self.playing = self.playing, {}
        for playing in lost.values():
            if not playing.ended.done():
                playing.ended.set_exception(NodeLostError(self._lost))
