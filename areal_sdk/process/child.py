"""A child process as the main process sees it: call it, stream from it, learn of its death."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from areal_sdk.errors import CallTimeoutError, ChildDiedError, ProcessError
from areal_sdk.process.channel import Request, error_of
from areal_sdk.process.connection import Connection
from areal_sdk.process.frames import JSON, Buffer, ChildReply, Frame, FrameKind, view_of
from areal_sdk.process.spec import ChildExit, ProcessSpec

Part = TypeVar("Part")

KILLED_WITHIN_S = 60.0
"""Seconds that a child may take to end after SIGKILL. The kernel still frees its memory: on a crowded machine,
gigabytes take more than five seconds, and a run that had ended well would be reported as failed."""


class Body(Protocol):
    """The process of a child, on this machine or another."""

    @property
    def pid(self) -> int: ...

    @property
    def host(self) -> str:
        """The address of the process's machine; empty for this one."""

    @property
    def log_path(self) -> Path: ...

    def signal(self, number: int) -> None:
        """Signal the process and its family. A process that is gone, or out of reach, gets no signal."""

    def ask_for_stacks(self) -> None:
        """Make the process write the stack of every thread to its log."""


class Child:
    """One running child. Made by `spawn` (this machine) or `Listener.accept` (any machine).

    However the child ends, `exited` resolves within a second and every pending call fails with
    `ChildDiedError`, which names the child, its end and its log.
    """

    def __init__(self, spec: ProcessSpec, body: Body, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.hello: JSON = None
        """The value that the entry gave to `channel.ready`."""
        self.exited: asyncio.Future[ChildExit] = loop.create_future()
        self._body = body
        self._connection = connection
        self._started: asyncio.Future[ChildReply] = loop.create_future()
        self._pending: dict[int, Callable[[Frame | ProcessError], None]] = {}
        self._next_id = 1
        self.on_call: Callable[[Request], None] = _refuse
        """Function that takes the calls of the child, such as `LoopAnswering.answer`."""
        self._asked: dict[int, Request] = {}
        """Calls of the child that have no answer yet."""
        self._is_closing = False
        connection.on_frame = self._on_frame

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        return self._body.pid

    @property
    def host(self) -> str:
        """The address of the child's machine; empty for this one."""
        return self._body.host

    @property
    def log_path(self) -> Path:
        return self._body.log_path

    @property
    def is_closed(self) -> bool:
        """Whether the child has ended."""
        return self.exited.done()

    async def call(
        self,
        method: str,
        payload: JSON = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> ChildReply:
        """Send one request and await its reply. A deadline or a cancellation cancels it in the child."""
        answer: asyncio.Future[ChildReply] = asyncio.get_running_loop().create_future()

        def on_answer(answered: Frame | ProcessError) -> None:
            if answer.done():
                return
            if isinstance(answered, ProcessError):
                answer.set_exception(answered)
            else:
                answer.set_result(ChildReply(answered.payload, _views(answered)))

        request = self._request(method, payload, buffers, on_answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise self._too_late(method, f"did not answer within {timeout_s:g} s") from None
        finally:
            self._give_up(request)

    def stream(
        self,
        method: str,
        payload: JSON = None,
        buffers: Sequence[Buffer] = (),
        *,
        idle_timeout_s: float,
    ) -> AsyncGenerator[ChildReply, None]:
        """The parts of a streamed answer. `aclose` it early (or leave `aclosing`) to cancel it."""
        return self.parts(method, payload, buffers, ChildReply, idle_timeout_s=idle_timeout_s)

    async def parts(
        self,
        method: str,
        payload: JSON,
        buffers: Sequence[Buffer],
        read: Callable[[JSON, Sequence[memoryview]], Part],
        *,
        idle_timeout_s: float,
    ) -> AsyncGenerator[Part, None]:
        """The parts of a streamed answer, as `read` makes them of payloads and buffers."""
        parts: asyncio.Queue[Frame | ProcessError] = asyncio.Queue()
        # Unbounded on purpose: holding back one slow reader would hold back every other call.
        request = self._request(method, payload, buffers, parts.put_nowait)
        try:
            while True:
                try:
                    async with asyncio.timeout(idle_timeout_s):
                        part = await parts.get()
                except TimeoutError:
                    what = f"sent nothing for {idle_timeout_s:g} s"
                    raise self._too_late(method, what) from None
                if isinstance(part, ProcessError):
                    raise part
                is_last = part.kind is FrameKind.REPLY
                if not is_last or part.payload is not None or part.buffers:
                    yield read(part.payload, _views(part))
                if is_last:
                    return
        finally:
            self._give_up(request)

    async def wait_started(self, *, timeout_s: float) -> None:
        """Wait for the entry's `channel.ready`."""
        try:
            async with asyncio.timeout(timeout_s):
                self.hello = (await asyncio.shield(self._started)).payload
        except TimeoutError:
            raise CallTimeoutError(
                f"{self.name} (pid {self.pid}) was not ready within {timeout_s:g} s; "
                f"log: {self.log_path}"
            ) from None

    def start(
        self,
        *,
        sys_path: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        proof: str = "",
    ) -> None:
        """Tell the other side which entry to run."""
        payload = {
            "name": self.spec.name,
            "entry": self.spec.entry,
            "args": dict(self.spec.args),
            "sys_path": sys_path,
            "env": dict(env or {}),
            "proof": proof,
        }
        self._connection.send(Frame(FrameKind.START, payload=payload))

    def signal(self, number: int) -> None:
        """Signal the child and its family."""
        self._body.signal(number)

    async def kill(self) -> ChildExit:
        """Kill the child. Returns when it is gone."""

        self._is_closing = True
        self._body.signal(signal.SIGKILL)
        self._connection.close()
        return await self._wait_gone(KILLED_WITHIN_S, "did not die of SIGKILL")

    async def aclose(self, *, grace_s: float = 2.0) -> None:
        """Ask the child to leave, then SIGTERM, then SIGKILL. Returns when it is gone. Idempotent."""

        self._is_closing = True
        self._connection.send(Frame(FrameKind.EXIT))
        if not await self._is_gone_within(grace_s):
            self._body.signal(signal.SIGTERM)
            if not await self._is_gone_within(1.0):
                await self.kill()
        self._connection.close()

    # how its owner (spawn, listen) reports its end

    def ended(self, end: ChildExit) -> None:
        """Fail all pending calls, and all later ones."""
        if self.exited.done():
            return
        self.exited.set_result(end)
        self._connection.close()
        error = self.death()
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # `wait_started` may have given up: not worth a warning
        pending, self._pending = self._pending, {}
        for deliver in pending.values():
            deliver(error)
        for request in list(self._asked.values()):
            request.cancel()

    def send_answer(
        self, request: Request, kind: FrameKind, payload: JSON, buffers: Sequence[Buffer]
    ) -> None:
        """Answer a call of the child, unless the child gave it up. Called by `request`.

        An answer that cannot be encoded raises, and leaves the call open: the child can still be told.
        """
        if self._asked.get(request.id) is request:
            self._connection.send(Frame(kind, request.id, request.method, payload, buffers))
            if kind is not FrameKind.CHUNK:
                del self._asked[request.id]

    def death(self) -> ChildDiedError:
        """The error that says how the child ended, and where its log is."""
        end = self.exited.result()
        if self._is_closing:
            return ChildDiedError(f"{self.name} (pid {self.pid}) was closed")
        last = f"; last line: {end.last_lines[-1]}" if end.last_lines else ""
        return ChildDiedError(f"{self.name} (pid {self.pid}) {end}; log: {self.log_path}{last}")

    # inside

    async def _is_gone_within(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self.exited}, timeout=seconds))[0])

    async def _wait_gone(self, seconds: float, why: str) -> ChildExit:
        if not await self._is_gone_within(seconds):
            raise ProcessError(f"{self.name} (pid {self.pid}) {why}; log: {self.log_path}")
        return self.exited.result()

    def _request(
        self,
        method: str,
        payload: JSON,
        buffers: Sequence[Buffer],
        deliver: Callable[[Frame | ProcessError], None],
    ) -> int:
        if self.exited.done():
            raise self.death()
        request, self._next_id = self._next_id, self._next_id + 1
        self._connection.send(Frame(FrameKind.CALL, request, method, payload, buffers))
        self._pending[request] = deliver
        return request

    def _give_up(self, request: int) -> None:
        """Forget `request`, and cancel it in the child if it has no reply yet."""
        if self._pending.pop(request, None) is not None:
            self._connection.send(Frame(FrameKind.CANCEL, request))

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is FrameKind.READY:
            if not self._started.done():
                self._started.set_result(ChildReply(frame.payload))
            return
        if frame.kind is FrameKind.FAIL and frame.id == 0:
            if not self._started.done():
                where = f"{self.name} failed to start (log: {self.log_path})"
                self._started.set_exception(error_of(where, frame))
            return
        if frame.kind is FrameKind.CALL:
            request = Request(frame.method, frame.payload, _views(frame), frame.id, self)
            self._asked[frame.id] = request
            self.on_call(request)
            return
        if frame.kind is FrameKind.CANCEL:
            if (given_up := self._asked.pop(frame.id, None)) is not None:
                given_up.cancel()
            return
        deliver = self._pending.get(frame.id)
        if deliver is None:
            return  # given up while the answer was on its way
        is_error = frame.kind is FrameKind.FAIL
        answer = error_of(f"{self.name}: {frame.method}", frame) if is_error else frame
        if frame.kind is not FrameKind.CHUNK:
            del self._pending[frame.id]
        deliver(answer)

    def _too_late(self, method: str, what: str) -> CallTimeoutError:
        self._body.ask_for_stacks()
        return CallTimeoutError(
            f"{self.name} (pid {self.pid}): {method!r} {what}; "
            f"where it is stuck is in its log: {self.log_path}"
        )


async def kill_all(children: Sequence[Child]) -> None:
    """Kill `children` and return when all are gone, even if the caller is cancelled meanwhile."""
    killing = asyncio.gather(*(child.kill() for child in children))
    was_cancelled = False
    while not killing.done():
        try:
            await asyncio.shield(killing)
        except asyncio.CancelledError:
            was_cancelled = True  # not now: `kill` is over within seconds
    if was_cancelled:
        raise asyncio.CancelledError
    killing.result()


def _refuse(request: Request) -> None:
    request.fail(ProcessError(f"the main process answers no calls, not even {request.method!r}"))


def _views(frame: Frame) -> list[memoryview]:
    return [view_of(buffer) for buffer in frame.buffers]
