"""Providers that send too much, text that is no JSON, or our own key: the turn is kept, and nobody else pays."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk_upstream import provider as module
from areal_sdk_upstream.backend import REPLY_HEADER
from tests.toolbox.gateway_requests import ALICE
from tests.toolbox.upstream import upstream_gateway

SECRET = "sk-upstream-0123456789"
ADMIN = "sk-admin-0123456789abcdef"
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SSE = {"Content-Type": "text/event-stream"}


class Provider:
    """Answers with the bytes that a test gives it."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.pieces: Sequence[bytes] = ()
        self.is_endless = False
        self.num_sent = 0
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.asked.append(dict(request.headers))
        headers = {"Content-Type": "application/json", **self.headers}
        response = web.StreamResponse(status=self.status, headers=headers)
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece)
        while self.is_endless:
            await response.write(b" " * 65_536)
            self.num_sent += 65_536
        return response


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def gateway(provider: Provider) -> AsyncIterator[BackendGateway]:
    async with serving(provider, SECRET) as gateway:
        yield gateway


@asynccontextmanager
async def serving(provider: Provider, key: str) -> AsyncIterator[BackendGateway]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    gateway = upstream_gateway(url, api_key=key, admin_key=ADMIN, users=[ALICE])
    await gateway.start()
    yield gateway
    await gateway.aclose()
    await runner.cleanup()


async def call(
    gateway: BackendGateway,
    path: str = "chat/completions",
    *,
    key: str = f"{ALICE.api_key}/e",
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    async with aiohttp.ClientSession(headers=sent) as http:
        url = f"{gateway.base_url}/{path}"
        async with http.request(method, url, json=ASK if method == "POST" else None) as reply:
            return reply.status, dict(reply.headers), await reply.read()


def turns(gateway: BackendGateway) -> Sequence[Any]:
    live = gateway.external.get("alice/e")
    assert live is not None
    return live.session.turns


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_without_an_end_is_read_no_further_than_its_limit(
    gateway: BackendGateway, provider: Provider, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(module, "_MOST_ANSWER_BYTES", 1_000_000)
    provider.is_endless, provider.status = True, status
    async with asyncio.timeout(20):
        got, _, raw = await call(gateway)
    assert (got, json.loads(raw)["error"]["code"]) == (502, "upstream_error")
    assert b"MiB" in raw
    assert provider.num_sent < 20_000_000, "what is sent, and what the sockets hold"
    assert not turns(gateway)


async def test_the_decoded_bytes_of_an_answer_are_limited(
    gateway: BackendGateway, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_ANSWER_BYTES", 1_000_000)
    provider.headers = {"Content-Encoding": "gzip"}
    provider.pieces = [gzip.compress(b" " * 20_000_000)]
    assert (await call(gateway))[0] == 502
    provider.pieces = [b"this is no gzip"]
    assert (await call(gateway))[0] == 502
    provider.pieces = [gzip.compress(json.dumps(chat("Hello.")).encode())]
    assert (await call(gateway))[0] == 200
    assert turns(gateway)[-1].message["content"] == "Hello."


async def test_a_file_of_the_admins_passes_whatever_its_size(
    gateway: BackendGateway, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_ANSWER_BYTES", 1_000_000)
    provider.pieces = [b"x" * 1_000_000] * 3
    status, _, raw = await call(gateway, "files/f/content", key=ADMIN, method="GET")
    assert (status, len(raw)) == (200, 3_000_000)


def chat(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], **more}


def chunk(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more}


ODD_JSON = {
    "NaN": b'"score": NaN',
    "infinity": b'"score": -Infinity',
    "a float past float64": b'"score": 1e999, "other": NaN',
    "an integer past 64 bits": b'"score": %s, "other": NaN' % (b"9" * 40),
    "half a surrogate pair": b'"score": "\\ud83d"',
    "bytes that are no UTF-8": b'"score": "\xff\xfe"',
    "a control character": b'"score": "\x01"',
}


@pytest.mark.parametrize("odd", ODD_JSON.values(), ids=ODD_JSON)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_value_that_is_no_json_costs_no_turn_and_no_reward(
    gateway: BackendGateway, provider: Provider, odd: bytes, stream: bool
) -> None:
    whole = [chunk("Hel"), chunk("lo.", "stop")] if stream else [chat("Hello.", usage={"n": 1})]
    bodies = [json.dumps(body).encode()[:-1] + b", " + odd + b"}" for body in whole]
    if stream:
        provider.headers = SSE
        bodies = [b"data: " + body + b"\n\n" for body in bodies] + [b"data: [DONE]\n\n"]
    provider.pieces = bodies
    status, headers, raw = await call(gateway)
    assert (status, raw) == (200, b"".join(bodies)), "the client gets what the provider wrote"
    (turn,) = turns(gateway)
    assert turn.message["content"] == "Hello."
    async with aiohttp.ClientSession(headers={"x-api-key": f"{ALICE.api_key}/e"}) as http:
        reward = {"reward": 1.0, "turn": headers[REPLY_HEADER]}
        async with http.post(f"{gateway.base_url}/reward", json=reward) as reply:
            assert reply.status == 200, await reply.text()


async def test_an_answer_without_an_id_is_kept(gateway: BackendGateway, provider: Provider) -> None:
    body = chat()
    del body["id"]
    provider.pieces = [json.dumps(body).encode()]
    assert (await call(gateway))[0] == 200
    provider.headers = SSE
    events = [chunk("Hello", "stop")]
    del events[0]["id"]
    provider.pieces = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    assert (await call(gateway))[0] == 200
    assert [turn.message["content"] for turn in turns(gateway)] == ["Hello.", "Hello"]


ODD_MESSAGES: dict[str, Any] = {
    "parts": {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}]},
    "a number": {"content": 7},
    "calls that are none": {"content": "a", "tool_calls": [None, 3, {"function": None}, {}]},
    "calls of objects": {"tool_calls": [{"function": {"name": 1, "arguments": {"a": 1}}}]},
    "a thought that is none": {"content": "a", "reasoning_content": {"a": 1}},
    "a role that is none": {"content": "a", "role": 3},
}


@pytest.mark.parametrize("message", ODD_MESSAGES.values(), ids=ODD_MESSAGES)
async def test_an_odd_message_is_kept_or_told_and_its_client_has_it(
    gateway: BackendGateway, provider: Provider, message: dict[str, Any]
) -> None:
    body = chat()
    body["choices"][0]["message"] = message
    provider.pieces = [json.dumps(body).encode()]
    for _ in range(2):
        status, _, raw = await call(gateway)
        assert (status, json.loads(raw)) == (200, body)
    live = gateway.external.get("alice/e")
    assert live is not None
    assert live.session.turns or live.session.notices
    assert live.session.faults == []


async def test_headers_that_name_an_organisation_pass_in_no_direction(
    gateway: BackendGateway, provider: Provider
) -> None:
    provider.pieces = [json.dumps(chat()).encode()]
    provider.headers = {
        "openai-organization": "org-operator",
        "anthropic-organization-id": "org-operator",
        "openai-project": "proj-operator",
        "x-echo": SECRET,
        "x-request-id": f"req of {SECRET}",
        "x-ratelimit-remaining-tokens": "7",
    }
    theirs = {
        "OpenAI-Organization": "org-caller",
        "OpenAI-Project": "proj-caller",
        "anthropic-organization-id": "org-caller",
        "Idempotency-Key": "of-caller",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "some-beta",
        "OpenAI-Beta": "some-beta",
    }
    _, headers, _ = await call(gateway, headers=theirs)
    (asked,) = provider.asked
    assert "caller" not in str(asked)
    assert {name.lower() for name in asked} >= {
        "anthropic-version",
        "anthropic-beta",
        "openai-beta",
    }
    assert "operator" not in str(headers)
    assert SECRET not in str(headers)
    assert headers["x-ratelimit-remaining-tokens"] == "7"


@pytest.mark.parametrize("status", [200, 400, 429, 500])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_quotes_our_key_reaches_nobody_with_it(
    gateway: BackendGateway, provider: Provider, status: int, kind: str
) -> None:
    provider.status = status
    provider.headers = {"Content-Type": kind}
    said = f'data: {{"error": {{"message": "no quota left for {SECRET}, sk-up"}}}}\n\n'.encode()
    at = said.index(SECRET.encode())
    provider.pieces = [said[: at + 5], said[at + 5 : at + 9], said[at + 9 :]]
    for path, key, method in (
        ("chat/completions", f"{ALICE.api_key}/e", "POST"),
        ("models", ALICE.api_key, "GET"),
    ):
        got, _, raw = await call(gateway, path, key=key, method=method)
        assert got == status
        assert SECRET.encode() not in raw
        assert raw == said.replace(SECRET.encode(), b"[the server's key]")


ODD_SECRET = "sk+upstream/KEY0123456789ab=="
FORMS = {
    "escaped slash": ODD_SECRET.replace("/", "\\/"),
    "escaped plus": ODD_SECRET.replace("+", "\\u002b"),
    "escaped letters": "".join(f"\\u{ord(c):04x}" for c in ODD_SECRET),
    "escaped twice": ODD_SECRET.replace("/", "\\\\/"),
    "url": quote(ODD_SECRET, safe=""),
    "url in lower case": quote(ODD_SECRET, safe="").lower(),
    "base64": base64.b64encode(ODD_SECRET.encode()).decode(),
    "base64 of the header": base64.b64encode(f"Bearer {ODD_SECRET}".encode()).decode(),
    "base64 of a user": base64.b64encode(f"user:{ODD_SECRET}".encode()).decode(),
    "without its end": ODD_SECRET[:-6],
    "its end alone": ODD_SECRET[-12:],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
async def test_no_form_of_our_key_comes_back_with_a_refusal(
    provider: Provider, form: str, kind: str
) -> None:
    provider.status, provider.headers = 429, {"Content-Type": kind, "Retry-After": "7"}
    error = '{"error": {"message": "no quota for FORM today", "type": "quota", "code": "q1"}}'
    provider.pieces = [error.replace("FORM", form).encode()]
    async with serving(provider, ODD_SECRET) as gateway:
        for path, method in (("chat/completions", "POST"), ("models", "GET")):
            status, headers, raw = await call(gateway, path, method=method)
            assert (status, headers["Retry-After"]) == (429, "7")
            found = json.loads(raw)["error"]
            assert (found["type"], found["code"]) == ("quota", "q1")
            told = found["message"]
            assert told.startswith("no quota for ")
            assert told.endswith(" today")
            assert "[the server's key]" in told
            left = told.replace("[the server's key]", "")
            assert len(left) < len("no quota for  today") + 16, "base64 of what is beside the key"


async def test_a_long_refusal_is_cut(gateway: BackendGateway, provider: Provider) -> None:
    provider.status, provider.pieces = 500, [b"x" * 1_000_000, SECRET.encode()]
    status, _, raw = await call(gateway)
    assert (status, set(raw)) == (500, {ord("x")})
    assert len(raw) < 100_000
