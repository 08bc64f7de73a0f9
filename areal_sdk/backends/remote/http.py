"""The HTTP part of a client: deadlines, refusals, streams of server-sent events."""

from abc import ABC
from collections.abc import AsyncGenerator, Callable
from typing import Any

import aiohttp
import orjson

from areal_sdk.backends.remote.client import (
    Deadlines,
    Delta,
    RequestRefusedError,
    ServerClient,
    ServerFailedError,
)

JSON = dict[str, Any]

_NUM_ERROR_CHARACTERS = 300
_KEEPALIVE_S = 3.0
"""Seconds that an idle connection is kept. Servers close connections after 5 s, and a call on a closed one would look
like a failure."""
_SUCCESS = (200, 202)
"""Status codes of success. A router answers 202 if it will do soon what it was asked."""
_ALIVE = Delta()


def open_session() -> aiohttp.ClientSession:
    """The connections to all servers of an engine."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        read_bufsize=1 << 20,
        trust_env=False,
    )


class HttpClient(ServerClient, ABC):
    """Base of the clients of HTTP servers: each method of a subclass is a call or a stream."""

    def __init__(
        self,
        address: str,
        session: aiohttp.ClientSession,
        *,
        deadlines: Deadlines | None = None,
        api_key: str | None = None,
    ) -> None:
        super().__init__(address, deadlines=deadlines)
        self._session = session
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._open_streams: set[aiohttp.ClientResponse] = set()

    def abandon(self) -> None:
        for response in tuple(self._open_streams):
            response.close()

    async def _get(self, path: str) -> JSON:
        return await self._call("GET", path, None, self.deadlines.control_s)

    async def _post(self, path: str, body: JSON, *, timeout_s: float | None = None) -> JSON:
        return await self._call("POST", path, body, timeout_s or self.deadlines.control_s)

    async def _call(self, method: str, path: str, body: JSON | None, timeout_s: float) -> JSON:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self.deadlines.connect_s)
        try:
            async with self._session.request(
                method,
                f"{self.address}{path}",
                data=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=timeout,
            ) as response:
                if response.status not in _SUCCESS:
                    await self._raise_refusal(path, response)
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._failure(path, exc, timeout_s) from exc
        try:
            parsed = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return {}  # some control endpoints answer in plain text
        return parsed if isinstance(parsed, dict) else {"value": parsed}

    async def _stream(
        self, path: str, body: JSON, *, read: Callable[[JSON], Delta | None]
    ) -> AsyncGenerator[Delta, None]:
        """Yields the result of `read` for each server-sent event of one request, up to the final delta.

        Closing the generator early closes the connection, so that the server sees the request abandoned.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.deadlines.connect_s, sock_read=self.deadlines.token_s
        )
        last: Delta | None = None
        try:
            async with self._session.post(
                f"{self.address}{path}",
                data=orjson.dumps(body),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=timeout,
            ) as response:
                if response.status != 200:
                    await self._raise_refusal(path, response)
                self._open_streams.add(response)
                try:
                    async for event in _events(response.content):
                        delta = read(event)
                        if delta is not None and delta.finish_reason is not None:
                            last = delta  # read on to the end, so that the connection is reused
                        else:
                            yield delta or _ALIVE
                finally:
                    self._open_streams.discard(response)
                    if last is None:
                        response.close()  # not released: the server sees us leave and aborts
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            if last is None:
                raise self._failure(path, exc) from exc
        if last is None:
            raise ServerFailedError(f"{self.address} closed the stream of a request in the middle")
        yield last

    async def _raise_refusal(self, path: str, response: aiohttp.ClientResponse) -> None:
        text = (await response.text())[:_NUM_ERROR_CHARACTERS]
        what = f"{self.address}{path} answered {response.status}: {text.strip()}"
        raise (ServerFailedError if response.status >= 500 else RequestRefusedError)(what)

    def _failure(
        self, path: str, error: Exception, timeout_s: float | None = None
    ) -> ServerFailedError:
        if isinstance(error, TimeoutError):
            seconds = timeout_s or self.deadlines.token_s
            return ServerFailedError(f"{self.address}{path} said nothing for {seconds:g} s")
        return ServerFailedError(f"{self.address}{path}: {type(error).__name__}: {error}")


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[JSON, None]:
    """Server-sent events, without the closing `[DONE]`."""
    pending = bytearray()
    async for piece in content.iter_any():
        pending += piece
        while (end := pending.find(b"\n\n")) >= 0:
            event = bytes(pending[:end])
            del pending[: end + 2]
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            try:
                yield orjson.loads(event[6:])
            except orjson.JSONDecodeError as exc:
                raise ServerFailedError(f"not an event in JSON: {event[:80]!r}") from exc
