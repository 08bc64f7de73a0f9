"""A collector for tests: a server that takes OTLP over HTTP, and decodes it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Collector:
    """The requests that arrived. `answers` are statuses to give before any 200."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def named(self, start: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"].startswith(start)]

    async def until(self, claim: Callable[[], bool]) -> None:
        """Wait until a request made the claim true."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(claim)

    async def answer(self, request: web.Request) -> web.Response:
        response = await self._take(request)
        async with self._changed:
            self._changed.notify_all()
        return response

    async def _take(self, request: web.Request) -> web.Response:
        if self.answers and (status := self.answers.pop(0)) != 200:
            return web.Response(status=status, text="not now")
        self.headers.append(request.headers)
        self.bodies.append((request.path, await request.read()))
        told = await request.json()
        if request.path == "/v1/traces":
            outer, inner, each, kept = "resourceSpans", "scopeSpans", "spans", self.spans
        else:
            outer, inner, each, kept = "resourceLogs", "scopeLogs", "logRecords", self.events
        for resource in told[outer]:
            self.resources.append(values(resource["resource"]))
            for scope in resource[inner]:
                kept += [{**one, "values": values(one)} for one in scope[each]]
        return web.json_response(self.reply)


@asynccontextmanager
async def collecting(**state: Any) -> AsyncIterator[Collector]:
    collector = Collector(**state)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/{signal:traces|logs}", collector.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


def values(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as Python values."""
    return {pair["key"]: _value(pair["value"]) for pair in owner["attributes"]}


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, told),) = value.items()
    match kind:
        case "intValue":
            return int(told)
        case "arrayValue":
            return [_value(one) for one in told["values"]]
        case "doubleValue" | "boolValue" | "stringValue":
            return told
        case _:
            raise ValueError(kind)
