"""Requests to a gateway, as its clients and its operator send them, and what they carry."""

import asyncio
import io
import json
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from areal_sdk.gateway import Gateway, Session
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.sessions.external import ExternalSession

ALICE = User("alice", "sk-alice-0123456789abcdef")
HI: list[Any] = [{"role": "user", "content": "Hi"}]
ASK = {"model": "policy", "messages": HI}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'


async def post(
    session: Session,
    gateway: Gateway,
    body: Any,
    *,
    path: str = "chat/completions",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    url = f"{session.base_url(gateway.base_url)}/{path}"
    if isinstance(body, dict):
        body = {"model": "policy", **body}
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as reply:
        raw = await reply.read()
        is_json = reply.content_type == "application/json"
        return reply.status, json.loads(raw) if is_json else raw.decode()


async def get(url: str, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as reply:
        return reply.status, await reply.json()


async def control(
    gateway: Gateway, method: str, path: str, body: Any = None, *, key: str | None = None
) -> tuple[int, Any]:
    url = gateway.base_url.replace("/v1", path)
    headers = {"Authorization": f"Bearer {gateway.admin_key if key is None else key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, url, json=body) as reply,
    ):
        return reply.status, await reply.json()


class Watcher:
    """Observes live sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self.begun: list[str] = []
        self.ended: list[ExternalSession] = []
        self._news = asyncio.Event()
        gateway.external.observe(self)

    def opened(self, live: ExternalSession) -> None:
        self.begun.append(live.id)

    def finished(self, live: ExternalSession) -> None:
        self.ended.append(live)
        self._news.set()

    async def next_ended(self) -> ExternalSession:
        async with asyncio.timeout(20):
            while not self.ended:
                self._news.clear()
                await self._news.wait()
        return self.ended.pop(0)


async def call(
    gateway: Gateway,
    path: str = "/v1/chat/completions",
    body: Any = None,
    *,
    key: str = "",
    method: str = "POST",
) -> tuple[int, Any, Any]:
    """Status, JSON and headers of one request."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = gateway.base_url.replace("/v1", path)
    body = {"model": "policy", "messages": HI} if body is None else body
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, url, json=body if method == "POST" else None) as reply,
    ):
        return reply.status, json.loads(await reply.read()), reply.headers


def client_for(gateway: Gateway, session: Session, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=session.base_url(gateway.base_url), api_key=session.key, **options)
