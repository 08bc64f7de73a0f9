"""The end of a gateway: running answers get a little time, and then the error of a server that stops."""

import asyncio

from aiohttp import web

from areal_sdk.gateway.errors import server_stopping
from areal_sdk.gateway.sessions.external import ExternalSessions
from areal_sdk.gateway.sessions.store import SessionStore

STOP_GRACE_S = 5.0
"""Seconds that running answers get when the server stops. The time is short: whoever pressed Ctrl-C waits for it."""

_LOOK_S = 0.02
"""Pause between two looks at the answers that still run."""


def ends_sessions(app: web.Application, external: ExternalSessions, sessions: SessionStore) -> None:
    """Have `app` end all sessions when it stops. Those of callers end when their requests are answered, or after
    `STOP_GRACE_S`. Nobody can connect any more by then."""

    async def end(_: web.Application) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + STOP_GRACE_S
        while any(live.num_running for live in external) and clock() < until:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_LOOK_S)
        for live in external:
            live.session.refuse_with(server_stopping)
        external.close_all()
        sessions.close_all()

    app.on_shutdown.append(end)
