"""Connections that send nothing, streams that break off, answers that ramble on, pages of other origins."""

import asyncio
import json
import logging
import socket

import aiohttp
import pytest

from areal_sdk.testing import Fault, Reply
from tests.gateway.conftest import StartGateway
from tests.gateway.raw_connections import (
    BODY,
    NEVER_ENDS,
    address,
    close,
    connect,
    idle,
    raw_request,
)
from tests.toolbox.gateway_requests import ALICE, HI, Watcher, call, control, post
from tests.toolbox.waiting import until

GIVEN = "sk-admin-0123456789abcdef"


async def test_half_a_request_is_closed_and_a_long_answer_is_not(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.server.HEAD_S", 0.05)
    gateway, _ = await start_gateway(NEVER_ENDS, users=[ALICE])
    busy_reader, busy_writer = await connect(gateway)
    busy_writer.write(raw_request(gateway, body={**BODY, "stream": True}))
    await asyncio.wait_for(busy_reader.readuntil(b"\r\n\r\n"), 20)
    for sent in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"):
        reader, writer = await connect(gateway)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        await close(writer)
    assert gateway._metrics.num_running == 1, "that one sent its request"
    await close(busy_writer)
    await until(idle(gateway))


async def test_who_reads_no_answer_is_closed(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.server.UNREAD_S", 0.05)
    gateway, _ = await start_gateway("ok")
    with socket.socket() as never_reads:
        never_reads.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(never_reads, ("127.0.0.1", address(gateway)))
        requests = b"GET /openapi.json HTTP/1.1\r\nHost: g\r\n\r\n" * 100

        async def ask_for_ever() -> None:
            while True:
                await loop.sock_sendall(never_reads, requests)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_for_ever(), 20)
    assert (await call(gateway, "/health", method="GET"))[0] == 200


async def test_of_many_silent_connections_the_oldest_give_way(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.server._raise_file_limit", lambda: 4)
    gateway, _ = await start_gateway("ok", users=[ALICE])
    connected = [await connect(gateway) for _ in range(6)]
    for reader, _writer in connected[:4]:
        assert await asyncio.wait_for(reader.read(), 20) == b""
    assert not any(reader.at_eof() for reader, _ in connected[4:])
    assert (await call(gateway, key=ALICE.api_key))[0] == 200
    for _, writer in connected:
        await close(writer)


async def test_a_fault_in_a_stream_is_logged_and_counted(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, _ = await start_gateway(Reply("some text", fault=Fault.RAISE, after=2))
    session = gateway.sessions.open("e")
    with caplog.at_level(logging.WARNING):
        status, text = await post(session, gateway, {"messages": HI, "stream": True})
    assert status == 200
    assert "engine_error" in text
    assert gateway._metrics.errors["engine_error"] == 1
    assert "broke off" in caplog.text


async def test_a_rambling_answer_ends_with_its_time_and_is_no_fault(
    start_gateway: StartGateway,
) -> None:
    """A plain server sets no limit of tokens: the time that an answer may take is one."""
    rambling = "word " * 500_000
    gateway, engine = await start_gateway(
        [rambling] * 2, max_context=10_000_000, max_request_s=0.5, users=[ALICE]
    )
    watcher = Watcher(gateway)
    status, body, _ = await call(gateway, key=ALICE.api_key)
    assert status == 200, body
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    async with (
        aiohttp.ClientSession(headers={"x-api-key": f"{ALICE.api_key}/e"}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json={**BODY, "stream": True}) as reply,
    ):
        text = await reply.text()
    *_, last, done, _ = text.split("\n\n")
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
    assert done == "data: [DONE]"
    live = gateway.external.get("alice/e")
    assert live is not None
    assert live.session.faults == []
    assert live.session.truncated
    assert len(live.session.turns) == 1
    assert engine.num_active == 0
    assert not watcher.ended


async def test_an_engine_that_stops_in_the_midst_is_a_fault_still(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(NEVER_ENDS, max_request_s=0.2)
    session = gateway.sessions.open("e")
    status, body = await post(session, gateway, {"messages": HI})
    assert (status, body["error"]["code"]) == (504, "engine_timeout")
    assert len(session.faults) == 1


async def test_metrics_need_the_admin_key_where_others_reach_them(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE], admin_key=GIVEN)
    url = gateway.base_url.replace("/v1", "/metrics")
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as reply:
            assert reply.status == 200, "on loopback nobody else asks"
        await gateway._server.aclose()
        await gateway.start(host="0.0.0.0")
        url = gateway.base_url.replace("0.0.0.0", "127.0.0.1").replace("/v1", "/metrics")
        for key, expected in (("", 401), (ALICE.api_key, 401), (GIVEN, 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with http.get(url, headers=headers) as reply:
                assert reply.status == expected


async def test_a_page_may_send_the_headers_of_openais_client(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE], cors_origins=["https://app.example"])
    asked = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count"
    headers = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }
    url = f"{gateway.base_url}/chat/completions"
    async with aiohttp.ClientSession() as http:
        async with http.options(url, headers=headers) as reply:
            allowed = reply.headers["Access-Control-Allow-Headers"]
            assert {name.strip() for name in allowed.split(",")} >= set(asked.split(","))
            assert "x-should-retry" in reply.headers["Access-Control-Expose-Headers"]
        stranger = {**headers, "Origin": "https://other.example"}
        async with http.options(url, headers=stranger) as reply:
            assert "Access-Control-Allow-Headers" not in reply.headers
        bad = {**headers, "Access-Control-Request-Headers": "x-evil: b"}
        async with http.options(url, headers=bad) as reply:
            assert "x-evil" not in reply.headers["Access-Control-Allow-Headers"]
    assert (await control(gateway, "GET", "/control/sessions"))[0] == 200
