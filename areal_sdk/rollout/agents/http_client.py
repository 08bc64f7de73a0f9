"""The connections of agents to the gateway: one pool for all episodes."""

import importlib.util
import re
import sys
from functools import partial
from importlib import metadata
from typing import Any, Self

from areal_sdk.process.threads import in_thread


def shared_http_client(*, for_gateway: bool = True) -> Any:
    """A connection pool for the installed `openai` package, or None without it.

    Agents close their clients, which closes the pool of a client. This pool ignores `aclose`, or the
    first episode to end would cut off the others; only `close_for_good` closes it. For the gateway
    of this run the proxy settings of the environment are ignored, and no request has a limit of its own:
    the deadline of the episode ends it. A busy event loop may take longer than openai's 5 s to connect.
    """
    if importlib.util.find_spec("openai") is None:
        return None
    client, settings = _client_of_openai()

    class SharedClient(client):  # type: ignore[misc, valid-type]  # one class or the other
        async def aclose(self) -> None:
            """Do nothing: other episodes use the pool."""

        async def close_for_good(self) -> None:
            await super().aclose()

    if for_gateway:
        settings |= {"trust_env": False, "timeout": None}
    return SharedClient(**settings)


def _client_of_openai() -> tuple[Any, dict[str, Any]]:
    """The class of the HTTP clients that `openai` makes, and their settings.

    An agent that uses `openai` has imported the package. For any other agent only its HTTP library is imported,
    because the import of `openai` is a third of the CPU time of a process's start (0.3 of 1.0 s).
    """
    library = None if "openai" in sys.modules else _library_of_openai()
    if library is None:
        from openai import DefaultAsyncHttpxClient

        return DefaultAsyncHttpxClient, {}
    return library.AsyncClient, {
        "timeout": library.Timeout(timeout=600, connect=5.0),
        "limits": library.Limits(max_connections=1000, max_keepalive_connections=100),
        "follow_redirects": True,
    }


def _library_of_openai() -> Any:
    """The HTTP library that the installed `openai` requires, if it is httpx or httpx2; else None."""
    required = metadata.requires("openai") or ()
    names = {
        re.split(r"[^\w-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line
    }
    known = [name for name in ("httpx", "httpx2") if name in names]
    return importlib.import_module(known[0]) if len(known) == 1 else None


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

    async def __aexit__(self, *_: object) -> None:
        if self._http_client is not None:
            await self._http_client.close_for_good()
            self._http_client = None
