"""Another provider behind our door: passed on as it is, text kept, its key told to nobody."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI
from yarl import URL

from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.gateway.sessions.external import ExternalSession
from areal_sdk.loop.api import serve_config
from areal_sdk.rollout.callers import to_episode
from areal_sdk.types import FinishReason
from areal_sdk_upstream.backend import REPLY_HEADER
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import ALICE, HI
from tests.toolbox.upstream import upstream_gateway

SECRET = "sk-upstream-0123456789"

Start = Callable[..., Awaitable[BackendGateway]]


class Provider:
    """An OpenAI-shaped server that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.go_on = asyncio.Event()
        self.was_left = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.paths.append(request.path_qs)
        body = await request.json() if request.can_read_body else {}
        if self.status != 200:
            error = {"error": {"message": f"refused {request.headers['Authorization']}"}}
            return web.json_response(error, status=self.status, headers={"Retry-After": "7"})
        if not body.get("stream"):
            message = {"role": "assistant", "content": "Hello."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
            return web.json_response({**answer, "choices": [choice]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for piece in ("Hel", "lo."):
                await response.write(chunk(piece))
                await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_left.set()
            raise
        await response.write(b"data: [DONE]\n\n")
        return response


def chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**event, "choices": [choice]}).encode() + b"\n\n"


class Kept:
    def __init__(self) -> None:
        self.ended: list[ExternalSession] = []

    def opened(self, live: ExternalSession) -> None: ...

    def finished(self, live: ExternalSession) -> None:
        self.ended.append(live)


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, str]]:
    made = Provider()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    made.go_on.set()
    await runner.cleanup()


@pytest.fixture
async def start(provider: tuple[Provider, str]) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def started(url: str = provider[1], **options: Any) -> BackendGateway:
            gateway = upstream_gateway(url, api_key=SECRET, users=[ALICE], **options)
            await gateway.start()
            stack.push_async_callback(gateway.aclose)
            return gateway

        yield started


async def test_a_call_is_passed_on_with_the_providers_key_and_kept_as_text(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway, kept = await start(), Kept()
    gateway.external.observe(kept)
    key = f"{ALICE.api_key}/e"
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=key) as client:
        answer = await client.chat.completions.create(model="m", messages=HI)
    assert answer.choices[0].message.content == "Hello."
    (headers,) = provider[0].headers
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert ALICE.api_key not in str(headers)
    await gateway.aclose()
    (live,) = kept.ended
    episode = to_episode(live)
    assert [m["content"] for m in episode.messages] == ["Hi", "Hello."]
    assert episode.turns[0].output_tokens == (), "text only: nothing of it can be trained"


async def test_a_stream_passes_through_as_it_comes(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    key = f"{ALICE.api_key}/e"
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=key) as client:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        texts = []
        async with asyncio.timeout(20):
            async for event in stream:
                texts.append(event.choices[0].delta.content)
                provider[0].go_on.set()  # only now does the provider go on
    assert texts == ["Hel", "lo."]
    live = gateway.external.get("alice/e")
    assert live is not None
    assert live.session.turns[0].message["content"] == "Hello."


async def test_a_client_that_leaves_ends_the_providers_work(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    headers = {"Authorization": f"Bearer {ALICE.api_key}"}
    body = {"model": "m", "messages": HI, "stream": True}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        await reply.content.readline()
    await asyncio.wait_for(provider[0].was_left.wait(), 20)


async def test_what_a_client_saw_before_it_left_is_kept(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway, kept = await start(), Kept()
    gateway.external.observe(kept)
    headers = {"Authorization": f"Bearer {ALICE.api_key}/e"}
    body = {"model": "m", "messages": HI, "stream": True}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        await reply.content.readline()
        name = reply.headers[REPLY_HEADER]
    await asyncio.wait_for(provider[0].was_left.wait(), 20)
    async with aiohttp.ClientSession(headers=headers) as http:
        body = {"reward": 0.0, "turn": name}
        async with http.post(f"{gateway.base_url}/reward", json=body) as answer:
            assert answer.status == 200, await answer.text()
    live = gateway.external.get("alice/e")
    assert live is not None
    (turn,) = live.session.turns
    assert turn.message["content"] == "Hel"
    assert turn.finish_reason is FinishReason.ABORT


@pytest.mark.parametrize("status", [401, 403])
async def test_what_the_provider_says_of_our_key_reaches_nobody(
    start: Start, provider: tuple[Provider, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    provider[0].status = status
    gateway = await start()
    async with (
        aiohttp.ClientSession(headers={"x-api-key": f"{ALICE.api_key}/e"}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json={"messages": HI}) as reply,
    ):
        assert reply.status == 502
        text = await reply.text() + str(reply.headers)
    live = gateway.external.get("alice/e")
    assert live is not None
    for told in (text, str(live.session.faults), caplog.text, repr(live)):
        assert SECRET not in told


async def test_a_refusal_of_the_provider_is_passed_back(
    start: Start, provider: tuple[Provider, str]
) -> None:
    provider[0].status = 429
    gateway = await start()
    async with (
        aiohttp.ClientSession(headers={"x-api-key": ALICE.api_key}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json={"messages": HI}) as reply,
    ):
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")


async def test_a_provider_that_is_not_there_is_a_fault(start: Start) -> None:
    gateway = await start("http://127.0.0.1:9/v1")
    async with (
        aiohttp.ClientSession(headers={"x-api-key": f"{ALICE.api_key}/e"}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json={"messages": HI}) as reply,
    ):
        assert reply.status == 502
        assert (await reply.json())["error"]["code"] == "upstream_error"
    live = gateway.external.get("alice/e")
    assert live is not None
    assert len(live.session.faults) == 1


async def test_nobody_uses_the_providers_key_without_one_of_ours(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    async with aiohttp.ClientSession() as http:
        for path in ("chat/completions", "models", "files"):
            async with http.post(f"{gateway.base_url}/{path}", json={}) as reply:
                assert reply.status == 401
    assert provider[0].paths == []


async def test_other_paths_are_passed_on_and_open_no_session(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    async with (
        aiohttp.ClientSession(headers={"x-api-key": ALICE.api_key}) as http,
        http.get(f"{gateway.base_url}/models?limit=2") as reply,
    ):
        assert reply.status == 200
    assert provider[0].paths == ["/v1/models?limit=2"]
    assert list(gateway.external) == []


@pytest.mark.parametrize(
    "path",
    [
        "chat/./completions",
        "/chat/completions",
        "chat/completions/",
        "../admin",
        "%2e%2e%2fadmin",
        "models/%2e%2e%2fadmin",
        "models/%252e%252e%252fadmin",
    ],
)
@pytest.mark.parametrize("slug", ["", "/s/e"])
async def test_no_way_leads_around_the_door(
    start: Start, provider: tuple[Provider, str], path: str, slug: str
) -> None:
    gateway = await start()
    base = gateway.base_url.removesuffix("/v1") + slug
    for key in (ALICE.api_key, gateway.admin_key):
        async with (
            aiohttp.ClientSession(headers={"x-api-key": key}) as http,
            http.post(URL(f"{base}/v1/{path}", encoded=True), json={"messages": HI}) as reply,
        ):
            assert reply.status == 404
    assert provider[0].paths == []


@pytest.mark.parametrize("path", ["chat/completions%3Fa", "chat/completions%23a"])
async def test_a_path_reaches_the_provider_as_it_was_read(
    start: Start, provider: tuple[Provider, str], path: str
) -> None:
    gateway = await start()
    url = URL(f"{gateway.base_url}/{path}", encoded=True)
    for key, status in ((ALICE.api_key, 403), (gateway.admin_key, 200)):
        async with (
            aiohttp.ClientSession(headers={"x-api-key": key}) as http,
            http.post(url, json={"messages": HI}) as reply,
        ):
            assert reply.status == status
    assert provider[0].paths == [f"/v1/{path}"], "no call of an agent's that nobody recorded"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "responses/resp_1"),
        ("DELETE", "responses/resp_1"),
        ("GET", "chat/completions"),
        ("GET", "files"),
        ("DELETE", "models/ours"),
        ("POST", "images/generations"),
        ("GET", "messages/batches"),
    ],
)
async def test_what_the_provider_keeps_for_its_one_key_is_the_admins(
    start: Start, provider: tuple[Provider, str], method: str, path: str
) -> None:
    gateway = await start()
    async with aiohttp.ClientSession() as http:
        for key in (ALICE.api_key, f"{ALICE.api_key}/e"):
            asked = http.request(method, f"{gateway.base_url}/{path}", headers={"x-api-key": key})
            async with asked as reply:
                assert reply.status == 403
                body = await reply.json()
            assert body["error"]["type"] == "permission_error"
            assert (body.get("type") == "error") == path.startswith("messages")
        assert provider[0].paths == []
        admin = {"x-api-key": gateway.admin_key}
        async with http.request(method, f"{gateway.base_url}/{path}", headers=admin) as reply:
            assert reply.status == 200
    assert provider[0].paths == [f"/v1/{path}"]


async def test_users_count_tokens_and_look_models_up(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    asked = [
        ("POST", "messages/count_tokens"),
        ("POST", "responses/input_tokens"),
        ("GET", "models/a-lab/a-model"),
    ]
    async with aiohttp.ClientSession(headers={"x-api-key": ALICE.api_key}) as http:
        for method, path in asked:
            async with http.request(method, f"{gateway.base_url}/{path}") as reply:
                assert reply.status == 200
    assert provider[0].paths == [f"/v1/{path}" for _, path in asked]


async def test_an_address_to_which_anthropics_sdk_adds_v1_is_the_same_address(
    start: Start, provider: tuple[Provider, str]
) -> None:
    gateway = await start()
    headers = {"x-api-key": f"{ALICE.api_key}/e"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{gateway.base_url}/v1/models") as reply:
            assert reply.status == 200
        body = {"model": "m", "messages": HI, "max_tokens": 9}
        async with http.post(f"{gateway.base_url}/v1/messages", json=body) as reply:
            assert reply.status == 200
    assert provider[0].paths == ["/v1/models", "/v1/messages"]
    assert [live.id for live in gateway.external] == ["alice/e"], "and it is a turn of the session"


async def test_what_our_own_gateway_streams_is_read_in_every_format(
    start: Start, start_gateway: StartGateway
) -> None:
    ours, _ = await start_gateway("Some words.")
    gateway = upstream_gateway(ours.base_url, api_key=ours.admin_key, users=[ALICE])
    await gateway.start()
    asked: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": HI},
        "completions": {"prompt": "Hi"},
        "responses": {"input": "Hi"},
        "messages": {"messages": HI, "max_tokens": 9},
    }
    async with aiohttp.ClientSession(headers={"x-api-key": f"{ALICE.api_key}/e"}) as http:
        for path, body in asked.items():
            for stream in (False, True):
                whole = {"model": "policy", "stream": stream, **body}
                async with http.post(f"{gateway.base_url}/{path}", json=whole) as reply:
                    assert reply.status == 200, await reply.text()
                    await reply.read()
    live = gateway.external.get("alice/e")
    assert live is not None
    assert [t.message["content"] for t in live.session.turns] == ["Some words."] * 8
    assert all("Hi" in str(t.new_messages[-1]) for t in live.session.turns)
    await gateway.aclose()


@pytest.mark.parametrize("scheme", ["https://", ""])
def test_an_address_with_a_password_is_refused_without_its_words(
    tmp_path: Path, scheme: str
) -> None:
    url = f"{scheme}me:hunter2@api.example.com/v1"
    config = parse_config({"serve": {"upstream": url}, "run": {"dir": str(tmp_path / "runs")}})
    makers: list[Callable[[], object]] = [
        lambda: upstream_gateway(url),
        lambda: serve_config(config, say=print),
    ]
    for make in makers:
        with pytest.raises(ConfigError, match="AREAL_SDK_UPSTREAM_KEY") as refused:
            make()
        assert "hunter2" not in str(refused.value)
    assert not (tmp_path / "runs").exists(), "its config.toml would keep the password"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="https://host/v1"):
        upstream_gateway("api.example.com")
