"""Give one server the prepared weights while requests are in flight, and attest the result."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from areal_sdk.backends.remote.pool import Member, State
from areal_sdk.backends.remote.transport import Transport
from areal_sdk.backends.remote.verify import Attestor
from areal_sdk.backends.sglang.client import ServerFault
from areal_sdk.errors import EngineError

InterruptMode = Literal["retract", "abort", "drain", "in_place"]
"""What a swap does to requests in flight.

* `retract`: the server holds them, recomputes their KV under the new weights, and goes on;
* `abort`: the server drops them; we send prompt and partial output again afterwards;
* `drain`: they end under the old weights first; nothing new starts meanwhile;
* `in_place`: they go on with the KV of the old weights. Their later logprobs match neither version:
  such tokens are counted as `num_stale_kv`.
"""


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """Seconds of one server's swap."""

    interrupted_s: float
    """No token was sampled for this long."""
    pushed_s: float
    """Of that, moving weights."""
    attested_s: float
    """Of that, checking them; the canary comes after and interrupts nobody."""


async def swap(
    member: Member,
    *,
    version: int,
    label: str,
    transport: Transport,
    attestor: Attestor,
    mode: InterruptMode,
    drain_timeout_s: float,
) -> SwapTimes:
    """Serve `version` from the next token on. On an error the server must not be used as it is."""
    async with member.swap_lock:
        member.gate.clear()
        began = time.monotonic()
        try:
            await _interrupt(member, mode, drain_timeout_s)
            push_began = time.monotonic()
            await transport.push(member, label=label, flush=mode != "in_place")
            pushed = time.monotonic()
            await attestor.check_paused(member, label=label)
            attested = time.monotonic()
            member.version = version
            if mode in ("retract", "in_place"):
                await member.client.resume()
            member.gate.set()
            ended = time.monotonic()
            await attestor.check_serving(member, cache_key=label if mode == "in_place" else None)
        except BaseException as exc:
            member.is_tainted = True
            member.state, member.reason = State.BEHIND, str(exc)  # before anything is sent there
            raise
        finally:
            member.gate.set()
        member.is_tainted = False
        return SwapTimes(ended - began, pushed - push_began, attested - pushed)


async def relabel(member: Member, *, version: int, label: str, mode: InterruptMode) -> None:
    """The same weights under a new version. Held for a moment, so that each token's label is sure:
    a stream tells the sides of a change apart by its retraction."""
    async with member.swap_lock:
        if mode == "in_place":
            await member.client.set_label(label)
        else:
            await member.client.pause("retract")
            await member.client.set_label(label)
            await member.client.resume()
        member.version = version


async def _interrupt(member: Member, mode: InterruptMode, drain_timeout_s: float) -> None:
    if mode in ("retract", "in_place"):
        await member.client.pause(mode)
    elif mode == "abort":
        await interrupt(member)
    else:
        try:
            async with asyncio.timeout(drain_timeout_s):
                await member.idle.wait()
        except TimeoutError:
            raise EngineError(
                f"{member.address} still had {member.num_running} requests after "
                f"{drain_timeout_s:g} s of draining"
            ) from None


async def interrupt(member: Member, servers: Sequence[Member] = ()) -> None:
    """Abort our requests on a server that nothing new is sent to; they know that it was us.

    One that was on its way when the gate closed arrives after the abort: ask again until none is
    left. Those of a router are on any of its `servers`.
    """
    deadline_s = member.client.deadlines.control_s
    ends_at = time.monotonic() + deadline_s
    member.is_interrupting = True
    try:
        while member.num_running:
            if time.monotonic() > ends_at:
                raise ServerFault(f"{member.address} did not abort requests in {deadline_s:g} s")
            await asyncio.gather(*(server.client.abort_all() for server in servers or (member,)))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await member.idle.wait()
    finally:
        member.is_interrupting = False


async def discard_requests(member: Member) -> None:
    """After a swap that failed: nothing may go on under weights nobody can name.

    Our streams are closed (they continue elsewhere), the server's requests dropped, its pause
    lifted and its label spoilt, so that nobody takes its weights for a version.
    """
    member.client.abandon()
    for ask in (
        member.client.abort_all,
        member.client.resume,
        lambda: member.client.set_label("unknown"),
    ):
        try:
            await ask()
        except EngineError:
            return  # it does not answer: then it samples nothing for us either
