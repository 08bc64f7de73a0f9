"""Bad clients at a real engine: what it runs and holds is counted by the engine itself.

While the engine is paused nothing ends by itself: a slot that is free then was freed on purpose.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.backends.local.protocol import EngineLoad
from areal_sdk.config import Quota
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models import resolve_model
from tests.gateway.raw_connections import BODY, close, connect, raw_request
from tests.toolbox.gateway_requests import ALICE, call
from tests.toolbox.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_SLOTS = 2
FLOODER = User("flooder", "sk-flood-0123456789abcdef", Quota(max_running=6))
IDLE = EngineLoad(0, 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(
        resolve_model("tiny"),
        log_dir=tmp_path_factory.mktemp("logs"),
        options=LocalOptions(dtype="float32", max_slots=NUM_SLOTS, kv_memory_gb=0.1),
    )
    await engine.start()
    yield engine
    await engine.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(engine: LocalEngine) -> AsyncIterator[Gateway]:
    gateway = Gateway(
        engine,
        renderer=Renderer.load(resolve_model("tiny")),
        model_name="policy",
        sampling=SamplingPolicy(mode="respect"),
        users=[ALICE, FLOODER],
    )
    await gateway.start()
    yield gateway
    await gateway.aclose()
    await settles(engine, IDLE)


def endless(engine: LocalEngine, **fields: Any) -> dict[str, Any]:
    """A request that goes on to the end of the context: the model may not end its turn."""
    forbidden = {str(token): -100 for token in engine.info.stop_tokens}
    return {**BODY, "logit_bias": forbidden, "temperature": 1.0, **fields}


async def settles(engine: LocalEngine, load: EngineLoad) -> None:
    async with asyncio.timeout(60):
        while await engine.load() != load:  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def held(engine: LocalEngine, load: EngineLoad) -> AsyncIterator[None]:
    """Hold the engine still once it has that much to do: nothing ends by itself."""
    await settles(engine, load)
    await engine.pause()
    try:
        assert await engine.load() == load, "it was held in time"
        yield
    finally:
        await engine.resume()


async def is_served(gateway: Gateway) -> None:
    body = {**BODY, "max_tokens": 2}
    assert (await call(gateway, body=body, key=ALICE.api_key))[0] == 200


Leave = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _half_close(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


async def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", [close, _half_close, _reset])
async def test_who_disconnects_or_half_closes_frees_the_slot(
    gateway: Gateway, engine: LocalEngine, leave: Leave, stream: bool
) -> None:
    _, writer = await connect(gateway)
    writer.write(raw_request(gateway, body=endless(engine, stream=stream)))
    async with held(engine, EngineLoad(1, 0)):
        await leave(writer)
        await settles(engine, IDLE)
    await is_served(gateway)
    writer.transport.abort()


async def test_a_retry_holds_one_slot_and_not_two(gateway: Gateway, engine: LocalEngine) -> None:
    """An SDK gives up waiting and asks again: what it asked first is not sampled any more."""
    session = gateway.sessions.open("retries")
    async with AsyncOpenAI(
        base_url=gateway.base_url, api_key=session.key, timeout=2.0, max_retries=1
    ) as client:
        asked = asyncio.create_task(client.chat.completions.create(**endless(engine)))
        async with held(engine, EngineLoad(1, 0)):
            with pytest.raises(openai.APITimeoutError):
                await asked
            await settles(engine, IDLE)
    assert session.turns == []
    assert session.faults == [], "that its client had no patience is no fault of ours"
    session.close()
    await is_served(gateway)


async def test_a_retry_for_an_answer_that_was_lost_reaches_no_engine(
    gateway: Gateway, engine: LocalEngine
) -> None:
    session = gateway.sessions.open("lost")
    body = {**BODY, "max_tokens": 4}
    _, first, _ = await call(gateway, body=body, key=session.key)
    headers = {"Authorization": f"Bearer {session.key}", "x-stainless-retry-count": "1"}
    async with (
        held(engine, IDLE),
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        assert json.loads(await reply.read()) == first
        assert await engine.load() == IDLE
    assert len(session.turns) == 1
    session.close()


async def test_a_flood_that_leaves_frees_slots_and_queue(
    gateway: Gateway, engine: LocalEngine
) -> None:
    body = endless(engine)
    flood = [asyncio.create_task(call(gateway, body=body, key=FLOODER.api_key)) for _ in range(64)]
    async with held(engine, EngineLoad(NUM_SLOTS, 6 - NUM_SLOTS)):
        await until(lambda: sum(task.done() for task in flood) == 58)
        assert {task.result()[0] for task in flood if task.done()} == {429}
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await settles(engine, IDLE)
    await is_served(gateway)


async def test_fifty_megabytes_take_no_slot_and_cost_nobody_theirs(
    gateway: Gateway, engine: LocalEngine
) -> None:
    body = endless(engine, max_tokens=500)
    other = asyncio.create_task(call(gateway, body=body, key=ALICE.api_key))
    headers = {"Authorization": f"Bearer {FLOODER.api_key}"}

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 1_000_000

    async with (
        held(engine, EngineLoad(1, 0)),
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", data=pieces()) as reply,
    ):
        assert reply.status == 413
        assert await engine.load() == EngineLoad(1, 0)
    assert (await other)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_session_frees_its_slot_and_its_key_opens_none(
    gateway: Gateway, engine: LocalEngine, stream: bool
) -> None:
    session = gateway.sessions.open("closed")
    reader, writer = await connect(gateway)
    writer.write(raw_request(gateway, key=session.key, body=endless(engine, stream=stream)))
    async with held(engine, EngineLoad(1, 0)):
        session.close()
        await settles(engine, IDLE)
        told = b""
        while b"session_closed" not in told:
            piece = await asyncio.wait_for(reader.read(65536), 60)
            assert piece, told
            told += piece
        for _ in range(2):
            status, body, _ = await call(gateway, key=session.key)
            assert (status, body["error"]["code"]) == (409, "session_closed")
        assert await engine.load() == IDLE
    assert session.turns == []
    await close(writer)
    await is_served(gateway)


async def test_an_agent_that_is_cut_off_frees_its_slot(
    gateway: Gateway, engine: LocalEngine
) -> None:
    """The door without HTTP: a deadline that ends the episode ends what it samples."""
    session = gateway.sessions.open("agent")
    forbidden = dict.fromkeys(engine.info.stop_tokens, -100.0)
    request = ChatRequest(tuple(BODY["messages"]), sampling={"logit_bias": forbidden})
    asked = asyncio.create_task(session._completer.complete(session, request))
    async with held(engine, EngineLoad(1, 0)):
        session.close()
        await settles(engine, IDLE)
        with pytest.raises(ApiError, match="closed"):
            await asked
