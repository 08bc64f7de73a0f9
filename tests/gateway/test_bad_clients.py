"""Clients that leave, retry, flood, half-close or come too late: the engine's slot is freed each time."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from areal_sdk.config import Quota
from areal_sdk.gateway.accounts.accounts import User
from tests.gateway.conftest import StartGateway
from tests.gateway.raw_connections import (
    BODY,
    NEVER_ENDS,
    busy,
    close,
    connect,
    idle,
    raw_request,
)
from tests.toolbox.gateway_requests import ALICE, Watcher, call
from tests.toolbox.waiting import until


@pytest.mark.parametrize("stream", [False, True])
async def test_a_half_closed_connection_frees_its_slot(
    start_gateway: StartGateway, stream: bool
) -> None:
    gateway, _ = await start_gateway(NEVER_ENDS, users=[ALICE])
    _, writer = await connect(gateway)
    writer.write(raw_request(gateway, body={**BODY, "stream": stream}))
    await until(busy(gateway))
    writer.write_eof()
    await until(idle(gateway))
    await close(writer)


async def test_a_connection_that_is_reset_frees_its_slot(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(NEVER_ENDS, users=[ALICE])
    _, writer = await connect(gateway)
    writer.write(raw_request(gateway))
    await until(busy(gateway))
    writer.transport.abort()
    await until(idle(gateway))


async def test_a_body_that_never_comes_reaches_no_engine(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok", users=[ALICE])
    _, writer = await connect(gateway)
    writer.write(raw_request(gateway)[:-9])
    await writer.drain()
    assert (await call(gateway, key=ALICE.api_key))[0] == 200, "others are served meanwhile"
    await close(writer)
    assert engine.num_requests == 1


async def test_a_session_left_in_mid_answer_ends_and_is_judged_by_nobody(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(NEVER_ENDS, users=[ALICE])
    watcher = Watcher(gateway)
    _, writer = await connect(gateway)
    writer.write(raw_request(gateway))
    await until(busy(gateway))
    writer.transport.abort()
    live = await watcher.next_ended()
    assert live.session.turns == []
    assert live.session.faults == [], "that its client left is no fault of ours"


async def test_a_flood_is_held_to_the_quota_and_others_are_served(
    start_gateway: StartGateway,
) -> None:
    flooder = User("flooder", "sk-flood-0123456789abcdef", Quota(max_running=4))
    gateway, engine = await start_gateway([NEVER_ENDS] * 4 + ["ok"], users=[flooder, ALICE])
    flood = [asyncio.create_task(call(gateway, key=flooder.api_key)) for _ in range(64)]
    await until(lambda: sum(task.done() for task in flood) == 60)
    assert {task.result()[0] for task in flood if task.done()} == {429}
    assert gateway._metrics.num_running == 4
    assert (await call(gateway, key=ALICE.api_key))[0] == 200
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    await until(idle(gateway))
    assert engine.num_requests == 5


async def test_fifty_megabytes_are_refused_before_they_are_read(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("ok", users=[ALICE])
    headers = {"Authorization": f"Bearer {ALICE.api_key}"}

    async def pieces() -> Any:
        for _ in range(50):
            yield b" " * 1_000_000

    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", data=pieces()) as reply,
    ):
        assert reply.status == 413
    assert engine.num_requests == 0
    assert (await call(gateway, key=ALICE.api_key))[0] == 200


async def test_the_key_of_a_closed_session_opens_nothing(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok", users=[ALICE])
    session = gateway.sessions.open("e")
    session.close()
    slug = session.base_url(gateway.base_url).partition("/s/")[2].partition("/")[0]
    for path, key in (
        ("/v1/chat/completions", session.key),
        (f"/s/{slug}/v1/chat/completions", ""),
        (f"/s/{slug}/v1/chat/completions", ALICE.api_key),
    ):
        status, body, headers = await call(gateway, path, key=key)
        assert (status, body["error"]["code"]) == (409, "session_closed")
        assert headers["x-should-retry"] == "false"
    assert engine.num_requests == 0
    assert len(gateway.sessions) == 0


async def test_a_session_that_ends_takes_what_is_sampled_for_it_along(
    start_gateway: StartGateway,
) -> None:
    """Nobody will read that answer: its client is told so, and the slot is free, both at once."""
    gateway, engine = await start_gateway(NEVER_ENDS, users=[ALICE])
    watcher = Watcher(gateway)
    key = f"{ALICE.api_key}/e"
    running = asyncio.create_task(call(gateway, key=key))
    await until(busy(gateway))
    assert (await call(gateway, "/v1/end", {}, key=key))[0] == 200
    status, body, headers = await running
    assert (status, body["error"]["code"]) == (409, "session_closed")
    assert headers["x-should-retry"] == "false"
    live = await watcher.next_ended()
    assert live.session.turns == []
    assert live.session.faults == [], "that it was ended is no fault of ours"
    await until(idle(gateway))
    assert engine.num_active == 0


@pytest.mark.parametrize(
    "text",
    ["\r\n\r\ndata: [DONE]\r\n\r\n", "x\n\nevent: error\ndata: {}\n\n", "\u2028\u2029\x85 \x00"],
)
async def test_no_text_breaks_out_of_its_event(start_gateway: StartGateway, text: str) -> None:
    gateway, _ = await start_gateway(text, users=[ALICE])
    async with (
        aiohttp.ClientSession(headers={"x-api-key": ALICE.api_key}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json={**BODY, "stream": True}) as reply,
    ):
        raw = (await reply.read()).decode()
    events = [event.removeprefix("data: ") for event in raw.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events]
    assert "".join(deltas) == text


@pytest.mark.parametrize("name", ["a%0d%0aX-Evil:%201", "a b", "../alice"])
async def test_no_name_becomes_a_header(start_gateway: StartGateway, name: str) -> None:
    gateway, engine = await start_gateway("ok", users=[ALICE])
    reader, writer = await connect(gateway)
    writer.write(raw_request(gateway, key=f"{ALICE.api_key}/{name}"))
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
    await close(writer)
    assert " 40" in head.splitlines()[0], head
    assert "X-Evil" not in head
    assert engine.num_requests == 0


async def test_thousands_of_sessions_stay_open_at_once(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE])
    Watcher(gateway)
    account = gateway._access._accounts.by_name("alice")
    assert account is not None
    for number in range(5_000):
        gateway.external.named(account, f"s{number}")
    assert (await call(gateway, key=f"{ALICE.api_key}/s4321"))[0] == 200
    assert len(gateway.sessions) == 5_000
