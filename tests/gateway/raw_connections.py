"""Connections of clients that mind no manners, byte by byte."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from areal_sdk.gateway import Gateway
from areal_sdk.testing import Fault, Reply
from tests.toolbox.gateway_requests import ALICE

BODY: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
NEVER_ENDS = Reply("never ends", fault=Fault.HANG, after=2)


def busy(gateway: Gateway) -> Callable[[], bool]:
    return lambda: gateway._metrics.num_running > 0


def idle(gateway: Gateway) -> Callable[[], bool]:
    return lambda: gateway._metrics.num_running == 0


def raw_request(gateway: Gateway, *, key: str = ALICE.api_key, body: Any = None) -> bytes:
    """One request as bytes, for a client that minds no manners."""
    payload = json.dumps(BODY if body is None else body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "Host: gateway\r\n"
        f"Authorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def connect(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", address(gateway))


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # the other side may have gone first
        await writer.wait_closed()


def address(gateway: Gateway) -> int:
    return int(gateway.base_url.removesuffix("/v1").rpartition(":")[2])
