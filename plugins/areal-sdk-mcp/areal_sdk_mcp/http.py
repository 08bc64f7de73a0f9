"""A server at an address: streamable HTTP. A request is a POST; its answer is JSON, or an event in a stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from areal_sdk_mcp.protocol import JSON, fault, notification_of, reply_to, request_of, result_of

MAX_EVENT_BYTES = 16 * 1024 * 1024
_ACCEPTED = (200, 202, 204)


class HttpTransport:
    """One session of a server. Requests run side by side."""

    def __init__(self, url: str, *, headers: Mapping[str, str], name: str) -> None:
        self._url = url
        self._headers = dict(headers)
        self._name = name
        self._client: aiohttp.ClientSession | None = None
        self._num_requests = 0

    @property
    def pid(self) -> int | None:
        return None

    async def start(self) -> None:
        self._client = aiohttp.ClientSession(
            headers={"Accept": "application/json, text/event-stream", **self._headers},
            read_bufsize=MAX_EVENT_BYTES,
        )

    async def request(self, method: str, params: JSON, *, timeout_s: float) -> JSON:
        self._num_requests += 1
        number = self._num_requests
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._post(request_of(number, method, params), number)
        except TimeoutError:
            raise fault(self._name, f"no answer to {method} within {timeout_s:g} s") from None
        result = result_of(answer, server=self._name, method=method)
        if method == "initialize":
            self._headers["MCP-Protocol-Version"] = str(result.get("protocolVersion"))
        return result

    async def notify(self, method: str) -> None:
        await self._post(notification_of(method), None)

    async def aclose(self) -> None:
        """End the session; the server is somebody else's. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if "Mcp-Session-Id" in self._headers:
                timeout = aiohttp.ClientTimeout(total=1.0)
                async with client.delete(self._url, headers=self._headers, timeout=timeout):
                    pass
        except (aiohttp.ClientError, TimeoutError):
            pass  # a server need not end sessions when it is told
        finally:
            await client.close()

    async def _post(self, message: JSON, number: int | None) -> JSON:
        """The answer to request `number`; of a notification, which has none, an empty one."""
        if self._client is None:
            raise fault(self._name, "it was closed")
        try:
            async with self._client.post(self._url, json=message, headers=self._headers) as reply:
                return await self._read(reply, number)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise fault(self._name, f"{self._url} gave no answer: {exc!r}") from exc

    async def _read(self, reply: aiohttp.ClientResponse, number: int | None) -> JSON:
        is_json = reply.content_type == "application/json"
        if reply.status not in _ACCEPTED and (number is None or not is_json):
            text = (await reply.text())[:300]
            raise fault(self._name, f"{self._url} answered {reply.status}: {text}")
        if (session := reply.headers.get("Mcp-Session-Id")) is not None:
            self._headers["Mcp-Session-Id"] = session
        if number is None:
            return {}
        if is_json:
            answer = await reply.json()
            if isinstance(answer, dict) and ("result" in answer or "error" in answer):
                return answer
            raise fault(self._name, f"{self._url} answered {reply.status}: {str(answer)[:300]}")
        async for event in _events(reply):
            if event.get("id") == number and "method" not in event:
                return event
            if (own := reply_to(event)) is not None:
                await self._post(own, None)
        raise fault(self._name, "its stream ended without an answer")


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The messages of a stream of server-sent events."""
    lines: list[str] = []
    async for raw in reply.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and lines:
            message = json.loads("\n".join(lines) or "{}") if any(lines) else {}
            lines = []
            if isinstance(message, dict):
                yield message
