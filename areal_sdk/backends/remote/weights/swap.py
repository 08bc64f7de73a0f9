"""Give one server the prepared weights while requests are in flight, and verify the result."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from areal_sdk.backends.remote.client import InterruptMode, ServerFailedError
from areal_sdk.backends.remote.server_pool import Server, State
from areal_sdk.backends.remote.weights.transport import Transport
from areal_sdk.backends.remote.weights.verify import Verifier
from areal_sdk.errors import EngineError


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """Seconds of one server's swap."""

    interrupted_s: float
    """Seconds in which the server sampled no token."""
    pushed_s: float
    """Seconds of this time that went into moving weights."""
    verified_s: float
    """Seconds of this time that went into checks. The canary comes later and interrupts nothing."""


async def swap(
    server: Server,
    *,
    version: int,
    label: str,
    transport: Transport,
    verifier: Verifier,
    mode: InterruptMode,
    drain_timeout_s: float,
) -> SwapTimes:
    """Have a server serve `version` from the next token on. After an error the server must not be used."""
    async with server.swap_lock:
        server.gate.clear()
        began = time.monotonic()
        try:
            await _interrupt(server, mode, drain_timeout_s)
            push_began = time.monotonic()
            await transport.push(server, label=label, flush=mode != "in_place")
            pushed = time.monotonic()
            await verifier.check_paused(server, label=label)
            verified = time.monotonic()
            server.version = version
            if mode in ("retract", "in_place"):
                await server.client.resume()
            server.gate.set()
            ended = time.monotonic()
            await verifier.check_serving(server, cache_key=label if mode == "in_place" else None)
        except BaseException as exc:
            server.is_tainted = True
            server.state, server.reason = State.BEHIND, str(exc)  # before anything is sent there
            raise
        finally:
            server.gate.set()
        server.is_tainted = False
        return SwapTimes(ended - began, pushed - push_began, verified - pushed)


async def relabel(server: Server, *, version: int, label: str, mode: InterruptMode) -> None:
    """Name the same weights as a new version. A server that can retract requests does so for a moment: a retraction in
    a stream shows from which token the new label counts."""
    async with server.swap_lock:
        if mode == "in_place":
            await server.client.set_label(label)
        elif "retract" in server.client.capabilities.interrupts:
            await server.client.pause("retract")
            await server.client.set_label(label)
            await server.client.resume()
        else:
            await _relabel_idle(server, label)
        server.version = version


async def _relabel_idle(server: Server, label: str) -> None:
    """Relabel a server that cannot hold requests. Its requests are aborted, and continue from their tokens under the
    new label."""
    server.gate.clear()
    try:
        await interrupt(server)
        await server.client.set_label(label)
    finally:
        server.gate.set()


async def _interrupt(server: Server, mode: InterruptMode, drain_timeout_s: float) -> None:
    if mode in ("retract", "in_place"):
        await server.client.pause(mode)
    elif mode == "abort":
        await interrupt(server)
    else:
        try:
            async with asyncio.timeout(drain_timeout_s):
                await server.idle.wait()
        except TimeoutError:
            raise EngineError(
                f"{server.address} still had {server.num_running} requests after "
                f"{drain_timeout_s:g} s of draining"
            ) from None


async def interrupt(server: Server, behind: Sequence[Server] = ()) -> None:
    """Abort our requests on a server to which no new ones are sent. The requests know that it was us.

    A request that was on its way when the gate closed arrives after the abort, so ask again until no request is left.
    Requests of a router are on any of the servers `behind` it.
    """
    deadline_s = server.client.deadlines.control_s
    ends_at = time.monotonic() + deadline_s
    server.is_interrupting = True
    try:
        while server.num_running:
            if time.monotonic() > ends_at:
                raise ServerFailedError(
                    f"{server.address} did not abort requests in {deadline_s:g} s"
                )
            await asyncio.gather(*(one.client.abort_all() for one in behind or (server,)))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await server.idle.wait()
    finally:
        server.is_interrupting = False


async def discard_requests(server: Server) -> None:
    """Drop the requests of a server whose swap failed: its weights have no version.

    The engine closes its streams, which continue on other servers, has the server drop its requests
    and end its pause, and spoils its label, so that its weights are not taken for a version.
    """
    server.client.abandon()
    for ask in (
        server.client.abort_all,
        server.client.resume,
        lambda: server.client.set_label("unknown"),
    ):
        try:
            await ask()
        except EngineError:
            return  # it does not answer: then it samples nothing for us either
