"""One device for engine and trainer: a server lends its memory for a step and takes it back.

A server may end when it is asked to compute, or to give or take memory, at the wrong time. So the
supervisor leaves a server alone while its memory is lent (`Server.care`).
"""

import asyncio
import logging

from areal_sdk.backends.remote.client import ServerFailedError
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)


async def lend(server: Server, *, label: str, patience_s: float) -> None:
    """Have a server give its memory away, after the engine's requests on it have ended. If the
    server does not, and the engine started it, the engine ends it, and the supervisor starts it again later. If the
    supervisor is restarting the server, wait `patience_s` for that at most."""
    try:
        async with asyncio.timeout(patience_s):
            await server.care.acquire()
    except TimeoutError:
        raise EngineError(
            f"{server.address} did not come back within {patience_s:g} s: see its log"
        ) from None
    try:
        await _give_away(server, label)
    except BaseException:
        server.care.release()
        raise
    server.is_lending = True


async def take_back(pool: Pool, server: Server) -> None:
    """Have a server take its memory back. If it cannot, it is down until the supervisor revives it."""
    if not server.is_lending:
        return
    try:
        await reclaim(server)
    except EngineError as exc:
        logger.warning("%s does not take its memory back: %s", server.address, exc)
        await pool.set_state(server, State.DOWN, str(exc))
    finally:
        server.is_lending = False
        server.care.release()
        server.wake.set()


async def reclaim(server: Server) -> None:
    """Take the memory back, unless the server was started again since: then it has memory already."""
    if server.lent_as and await server.client.weight_label() == server.lent_as:
        await server.client.resume_memory()
    server.lent_as = ""


async def _give_away(server: Server, label: str) -> None:
    try:
        if server.state is State.DOWN:
            raise ServerFailedError(f"{server.address} is down: {server.reason}")
        await server.client.release_memory()
        server.lent_as = label
    except EngineError as exc:
        if server.process is None:
            raise
        if server.process.is_running:
            logger.warning("%s does not give its memory away and is ended: %s", server.address, exc)
            await server.process.stop(grace_s=0.0)
