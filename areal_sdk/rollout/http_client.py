"""One connection pool for the clients of all episodes."""

import importlib.util
from typing import Any


def shared_http_client(*, for_gateway: bool = True) -> Any:
    """A connection pool of the installed `openai` package, or None without it.

    Closing a client closes its pool, and agents rightly close their clients: on this one only
    `close_for_good` does, or the first episode to end would cut the others off. Proxy settings of
    the environment do not apply to our own gateway, so there they are ignored.
    """
    if importlib.util.find_spec("openai") is None:
        return None
    from openai import DefaultAsyncHttpxClient

    class SharedClient(DefaultAsyncHttpxClient):
        async def aclose(self) -> None:
            """Leave it open for the other episodes."""

        async def close_for_good(self) -> None:
            await super().aclose()

    return SharedClient(trust_env=not for_gateway)
