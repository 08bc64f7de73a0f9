"""Requests that are no HTTP, bodies that are encoded: what the log and the client see of them."""

import asyncio
import gzip
import json
import logging

import aiohttp
import pytest

from areal_sdk.testing import Fault, Reply
from tests.gateway.conftest import StartGateway
from tests.gateway.raw_connections import BODY, close, connect
from tests.toolbox.gateway_requests import ALICE

SECRET = "sk-secret-0123456789abcdef"
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
MALFORMED = [
    f"{HEAD}Authorization: Bearer {SECRET}\rx\r\n\r\n",
    f"{HEAD}Authorization : Bearer {SECRET}\r\n\r\n",
    f"{HEAD}Authorization: Bearer {SECRET}{'x' * 9000}\r\n\r\n",
    f"{HEAD}Authorization Bearer {SECRET}\r\n\r\n",
    f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nbad {SECRET}\r\n\r\n",
    f"GET /{SECRET} {SECRET}\r\n\r\n",
    f"{SECRET} / HTTP/1.1\r\n\r\n",
]
ENCODED = {
    "not gzip": ("gzip", b"{}"),
    "gzip": ("gzip", gzip.compress(b" " * 50_000_000)),
    "deflate": ("deflate", b"{}"),
    "br": ("br", b"{}"),
    "zstd": ("zstd", b"{}"),
}


async def test_a_malformed_request_leaves_one_line_and_no_header_in_the_log(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, _ = await start_gateway("ok")
    with caplog.at_level(logging.DEBUG):
        for raw in MALFORMED * 3:
            reader, writer = await connect(gateway)
            writer.write(raw.encode())
            await asyncio.wait_for(reader.read(), 20)
            await close(writer)
    assert SECRET not in caplog.text
    (line,) = (r for r in caplog.records if r.name.startswith(("aiohttp", "areal_sdk")))
    assert line.exc_info is None
    assert "not HTTP" in line.getMessage()


@pytest.mark.parametrize("case", ENCODED)
@pytest.mark.parametrize("key", [ALICE.api_key, "sk-of-nobody-0123456789"])
async def test_an_encoded_body_is_refused_before_it_is_decoded(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture, case: str, key: str
) -> None:
    gateway, engine = await start_gateway("ok", users=[ALICE])
    encoding, body = ENCODED[case]
    headers = {"Authorization": f"Bearer {key}", "Content-Encoding": encoding}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", data=body) as reply,
    ):
        answer = await reply.json()
    if key == ALICE.api_key:
        assert (reply.status, answer["error"]["code"]) == (415, "unsupported_encoding")
    else:
        assert reply.status == 401
    assert engine.num_requests == 0
    assert not caplog.records


async def test_a_fault_is_logged_without_the_address_of_its_session(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """The address of a session is a key: anybody who knows it can use the session."""
    gateway, _ = await start_gateway([Reply("some text", fault=Fault.RAISE, after=2)] * 2)
    session = gateway.sessions.open("e")
    url = f"{session.base_url(gateway.base_url)}/chat/completions"
    async with aiohttp.ClientSession() as http:
        for stream in (False, True):
            async with http.post(url, json={**BODY, "stream": stream}) as reply:
                await reply.read()
    slug = url.partition("/s/")[2].partition("/")[0]
    assert caplog.text.count("/v1/chat/completions") == 2
    assert slug not in caplog.text


async def test_a_body_that_begins_with_a_byte_order_mark_is_refused_by_its_name(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE])
    headers = {"Authorization": f"Bearer {ALICE.api_key}", "Content-Type": "application/json"}
    body = b"\xef\xbb\xbf" + json.dumps(BODY).encode()
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", data=body) as reply,
    ):
        assert reply.status == 400
        said = (await reply.json())["error"]["message"]
    assert "begins with a byte order mark (BOM, EF BB BF): send the JSON without it" in said
