"""One device for engine and trainer: a server lends its memory for a step and takes it back.

SGLang ends when it is asked to compute, or to give or take memory, at the wrong time: so whoever
looks after a server leaves it alone while its memory is lent (`Member.care`).
"""

import asyncio
import logging
import time

from areal_sdk.backends.remote.pool import Member, Pool, State
from areal_sdk.backends.sglang.client import RequestRefused, ServerFault
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)

_MEMORY = ("weights", "kv_cache")
_IDLE_CHECK_S = 0.02


async def lend(member: Member, *, label: str, patience_s: float) -> None:
    """Nothing of ours may run there. A server of ours that will not let go is ended: it comes back.

    `patience_s` is for a restart in progress, which takes memory too.
    """
    try:
        async with asyncio.timeout(patience_s):
            await member.care.acquire()
    except TimeoutError:
        raise EngineError(f"{member.address} was not back after {patience_s:g} s") from None
    try:
        await _give_away(member, label)
    except BaseException:
        member.care.release()
        raise
    member.is_lending = True


async def take_back(pool: Pool, member: Member) -> None:
    """A server that cannot is down, and the supervisor's again."""
    if not member.is_lending:
        return
    try:
        await reclaim(member)
    except EngineError as exc:
        logger.warning("%s does not take its memory back: %s", member.address, exc)
        await pool.set_state(member, State.DOWN, str(exc))
    finally:
        member.is_lending = False
        member.care.release()
        member.wake.set()


async def reclaim(member: Member) -> None:
    """For the server that lent it only: one that was started again since has memory of its own."""
    if member.lent_as and await member.client.weight_label() == member.lent_as:
        await member.client.resume_memory(_MEMORY)
    member.lent_as = ""


async def _give_away(member: Member, label: str) -> None:
    try:
        if member.state is State.DOWN:
            raise ServerFault(f"{member.address} is down: {member.reason}")
        await _until_idle(member)
        await member.client.release_memory(_MEMORY)
        member.lent_as = label
    except EngineError as exc:
        if member.process is None:
            raise
        if member.process.is_running:
            logger.warning("%s does not give its memory away and is ended: %s", member.address, exc)
            await member.process.stop(grace_s=0.0)


async def _until_idle(member: Member) -> None:
    """SGLang refuses to flush while a request, an aborted one included, has not left the scheduler."""
    ends_at = time.monotonic() + member.client.deadlines.control_s
    while True:
        try:
            await member.client.flush_cache()
        except RequestRefused:
            if time.monotonic() > ends_at:
                raise
            await asyncio.sleep(_IDLE_CHECK_S)
        else:
            return
