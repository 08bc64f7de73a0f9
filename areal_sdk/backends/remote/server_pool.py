"""The servers of an engine: which may be given a request, and which one gets it."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum

from areal_sdk.backends.remote.client import ServerClient, ServerInfo
from areal_sdk.backends.remote.starting.processes import RunningServer
from areal_sdk.errors import EngineError
from areal_sdk.flow import MAX_IMBALANCE

MAX_SESSIONS = 65536
"""Number of sessions whose server is remembered. A forgotten session costs a prefill, nothing else."""

LOOK_EVERY_S = 5.0
"""Seconds between two checks by a waiting request whether a server that is being started was given up."""


class State(StrEnum):
    READY = "ready"
    BEHIND = "behind"
    """The server answers, but serves other weights than the current ones. It gets no requests until it serves these."""
    DRAINING = "draining"
    """The server ends its running requests; new ones go elsewhere."""
    SUSPECT = "suspect"
    """A request met a fault at the server, which gets no requests until it has answered a probe."""
    DOWN = "down"


class Server:
    """One server of the pool, and its state as last seen."""

    def __init__(self, client: ServerClient, process: RunningServer | None = None) -> None:
        self.client = client
        self.process = process
        self.info: ServerInfo | None = None
        self.state = State.DOWN
        self.reason = "not connected yet"
        """The reason why the server is not ready."""
        self.version = -1
        """The version that the server confirmed last."""
        self.is_tainted = False
        """Whether a push failed on the server. It must then get the weights again, even if its label is right."""
        self.num_running = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.gate = asyncio.Event()
        """A gate, closed while new requests must wait for a swap of weights."""
        self.gate.set()
        self.swap_lock = asyncio.Lock()
        self.care = asyncio.Lock()
        """A lock that is held while the supervisor checks or restarts the server, and while its memory is lent."""
        self.is_lending = False
        """Whether the trainer has the server's memory for now; the engine then holds `care`."""
        self.lent_as = ""
        """The label under which the server gave its memory away; empty while the server has its memory."""
        self.is_interrupting = False
        """Whether the engine aborts its requests for a swap. An aborted stream is then no failure."""
        self.last_token_at = 0.0
        """Time of the last token on the monotonic clock."""
        self.expected_by = 0.0
        """Time until which requests wait for a server that is being started; 0 for other servers."""
        self.wake = asyncio.Event()
        """An event that has the supervisor look at the server now."""

    def __repr__(self) -> str:
        return f"<{self.address} {self.state} v{self.version} running={self.num_running}>"

    @property
    def address(self) -> str:
        return self.client.address

    def began(self) -> None:
        self.num_running += 1
        self.idle.clear()

    def ended(self) -> None:
        self.num_running -= 1
        if self.num_running == 0:
            self.idle.set()


class Pool:
    """Places requests on servers: a session stays where its prefix is cached, others go to the least loaded server."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = list(servers)
        self._sessions: OrderedDict[str, Server] = OrderedDict()
        self._changed = asyncio.Condition()
        self.running = asyncio.Event()
        """An event that is cleared while the owner of the engine pauses it. No request is sent meanwhile."""
        self.running.set()
        self.entry: Server | None = None
        """The router that takes all requests, and places them on the servers itself; None without a router."""
        self.on_change: Callable[[], None] = lambda: None
        """Function that is called when the state of a server has changed."""
        self._tie_break = random.Random(0)

    @property
    def ready(self) -> list[Server]:
        return [server for server in self.servers if server.state is State.READY]

    async def set_state(self, server: Server, state: State, reason: str = "") -> None:
        async with self._changed:
            server.state = state
            server.reason = reason
            self._changed.notify_all()
        self.on_change()
        if self.entry is not None:
            self.entry.gate.clear()
            self.entry.wake.set()
        if state is State.DOWN:
            # Of streams through a router nobody knows the server: all continue elsewhere.
            (self.entry or server).client.abandon()

    def least_version(self, server: Server) -> int:
        """The lowest version that may sample a request sent to `server` now."""
        if server is self.entry:
            return min((m.version for m in self.ready), default=-1)
        return server.version

    @property
    def is_starting(self) -> bool:
        """Whether no server is ready, and one is being started."""
        return not self.ready and self._expected_by > time.monotonic()

    @property
    def _expected_by(self) -> float:
        return max((server.expected_by for server in self.servers), default=0.0)

    async def acquire(self, session: str, *, timeout_s: float) -> Server:
        """The server for the next attempt, once one is ready and not being swapped."""
        while True:
            await self.running.wait()  # as long as the owner likes: no server's fault
            if self.entry is None:
                await self.wait_ready(timeout_s=timeout_s)
            server = self.entry or self._choose(session)
            await self._patiently(server.gate.wait, server.gate.is_set, timeout_s)
            if (server is self.entry or server.state is State.READY) and self.running.is_set():
                return server

    async def wait_ready(self, *, timeout_s: float) -> None:
        async with self._changed:
            await self._patiently(self._changed.wait, lambda: bool(self.ready), timeout_s)

    async def _patiently(
        self, wait: Callable[[], Awaitable[object]], is_done: Callable[[], bool], timeout_s: float
    ) -> None:
        """Wait until `is_done`, for `timeout_s`, or as long as the start of a server may take. EngineError after that."""
        ends_at = time.monotonic() + timeout_s
        while not is_done():
            left_s = max(ends_at, self._expected_by) - time.monotonic()
            if left_s <= 0:
                raise EngineError(
                    f"no server was ready for {timeout_s:g} s (request_wait_s): {self.describe()}"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                    await wait()

    def describe(self) -> str:
        lines = [
            f"{m.address} is {m.state}"
            + (f" ({m.reason})" if m.reason else "")
            + (f", log: {m.process.log_path}" if m.process else "")
            for m in self.servers
        ]
        if self.entry is not None and not self.entry.gate.is_set():
            lines.append(
                f"the router {self.entry.address} does not have them ({self.entry.reason})"
            )
        return "; ".join(lines)

    def _choose(self, session: str) -> Server:
        least = min(
            self.ready, key=lambda m: (m.num_running, not m.gate.is_set(), self._tie_break.random())
        )
        if not session:
            return least
        home = self._sessions.get(session)
        if (
            home is None
            or home.state is not State.READY
            or home.num_running - least.num_running > MAX_IMBALANCE
        ):
            home = self._sessions[session] = least
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return home
