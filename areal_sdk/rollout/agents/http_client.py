"""One connection pool for the clients of all episodes."""

import importlib.util
from functools import partial
from types import TracebackType
from typing import Any, Self

from areal_sdk.process.threads import in_thread


def shared_http_client(*, for_gateway: bool = True) -> Any:
    """A connection pool of the installed `openai` package, or None without it.

    Agents close their clients, which closes the pool of a client. This pool ignores `aclose`, or the
    first episode to end would cut off the others; only `close_for_good` closes it. For the gateway
    of this run the proxy settings of the environment are ignored.
    """
    if importlib.util.find_spec("openai") is None:
        return None
    from openai import DefaultAsyncHttpxClient

    class SharedClient(DefaultAsyncHttpxClient):
        async def aclose(self) -> None:
            """Do nothing: other episodes use the pool."""

        async def close_for_good(self) -> None:
            await super().aclose()

    return SharedClient(trust_env=not for_gateway)


class SharesHttpClient:
    """`async with` opens and closes the connection pool that the episodes share."""

    def __init__(self, *, for_gateway: bool = True, is_needed: bool = True) -> None:
        self._for_gateway = for_gateway
        self._is_needed = is_needed
        self._http_client: Any = None

    async def __aenter__(self) -> Self:
        if self._is_needed:
            make = partial(shared_http_client, for_gateway=self._for_gateway)
            self._http_client = await in_thread(make, name="openai client")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._http_client is not None:
            await self._http_client.close_for_good()
            self._http_client = None
