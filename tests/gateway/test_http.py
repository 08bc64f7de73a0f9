"""The server itself: who may speak, what is refused, what a lost connection does."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.testing import Fault, Reply, ScriptedEngine
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import ASK, HI, get, post


async def test_health_needs_no_key(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    assert await get(gateway.base_url.replace("/v1", "/health")) == (
        200,
        {"status": "ok", "version": 0},
    )


async def test_the_model_is_listed_with_its_context(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(max_context=123)
    status, body = await get(f"{gateway.base_url}/models", gateway.admin_key)
    assert status == 200
    assert [(m["id"], m["max_model_len"]) for m in body["data"]] == [("policy", 123)]
    status, body = await get(f"{gateway.base_url}/models/gpt-5", gateway.admin_key)
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_models_are_listed_at_the_address_that_anthropics_sdk_makes_of_openais(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(max_context=123)
    headers = {"x-api-key": gateway.admin_key, "anthropic-version": "2023-06-01"}
    listed = f"{gateway.base_url}/v1/models"
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(listed) as reply:
            body = await reply.json()
            assert [(m["id"], m["max_input_tokens"]) for m in body["data"]] == [("policy", 123)]
        async with http.get(f"{listed}/policy") as reply:
            assert (await reply.json())["type"] == "model"
        async with http.get(listed, headers={"x-api-key": "sk-wrong"}) as reply:
            assert (reply.status, (await reply.json())["type"]) == (401, "error")


async def test_nobody_speaks_without_a_key(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    for key in ("", "sk-wrong", gateway.admin_key[:-1]):
        status, body = await get(f"{gateway.base_url}/models", key)
        assert (status, body["error"]["type"]) == (401, "authentication_error")
    status, _ = await get(f"{gateway.base_url.replace('/v1', '')}/s/e~0000000000000000/v1/models")
    assert status == 401
    assert engine.num_requests == 0


async def test_keys_are_made_anew(model_dirs: dict[str, Any]) -> None:
    directory = model_dirs["qwen3"]
    one, two = (
        Gateway(
            ScriptedEngine(model_dir=directory), renderer=Renderer.load(directory), model_name="m"
        )
        for _ in range(2)
    )
    assert one.admin_key != two.admin_key
    sessions = [gateway.sessions.open("same") for gateway in (one, two)]
    assert len({s.key for s in sessions} | {s.slug for s in sessions}) == 4


async def test_the_x_api_key_header_names_the_session_too(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    async with (
        aiohttp.ClientSession(headers={"x-api-key": session.key}) as http,
        http.post(f"{gateway.base_url}/chat/completions", json=ASK) as reply,
    ):
        assert reply.status == 200
    assert len(session.turns) == 1


async def test_the_admin_may_chat_and_nothing_is_kept(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.admin_key) as client:
        answer = await client.chat.completions.create(model="policy", messages=HI)
    assert answer.choices[0].message.content == "ok"
    assert len(gateway.sessions) == 0


async def test_a_generated_key_is_for_loopback_only(model_dirs: dict[str, Any]) -> None:
    engine = ScriptedEngine(model_dir=model_dirs["qwen3"])
    gateway = Gateway(engine, renderer=Renderer.load(model_dirs["qwen3"]), model_name="m")
    with pytest.raises(ConfigError, match="--admin-key"):
        await gateway.start(host="0.0.0.0")


async def test_a_port_in_use_names_the_cure(model_dirs: dict[str, Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = ScriptedEngine(model_dir=model_dirs["qwen3"])
        gateway = Gateway(engine, renderer=Renderer.load(model_dirs["qwen3"]), model_name="m")
        with pytest.raises(ConfigError, match="another port"):
            await gateway.start(port=taken.getsockname()[1])
        await gateway.aclose()


BAD_REQUESTS: dict[str, tuple[Any, str | None]] = {
    "no JSON": (b"{", None),
    "a list": ([], None),
    "no messages": ({}, "messages"),
    "no model": ({"messages": HI, "model": None}, "model"),
    "empty messages": ({"messages": []}, "messages"),
    "unknown role": ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0]",
    ),
    "temperature as text": ({"messages": HI, "temperature": "hot"}, "temperature"),
    "temperature too high": ({"messages": HI, "temperature": 9}, "temperature"),
    "a bias past float32": ({"messages": HI, "logit_bias": {"1": 1e39}}, "logit_bias"),
    "a bias that is no number": ({"messages": HI, "logit_bias": {"1": "nan"}}, "logit_bias"),
    "no repetition penalty": ({"messages": HI, "repetition_penalty": 0}, "repetition_penalty"),
    "fewer than no tokens": ({"messages": HI, "max_tokens": -1}, "max_tokens"),
    "n too large": ({"messages": HI, "n": 1000}, "n"),
    "unknown field": ({"messages": HI, "temprature": 1}, "temprature"),
    "audio": ({"messages": HI, "modalities": ["text", "audio"]}, "modalities"),
    "unknown tool choice": ({"messages": HI, "tool_choice": "maybe"}, "tool_choice"),
    "a tool choice that is no tool": (
        {"messages": HI, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
    ),
    "a tool without a name": (
        {"messages": HI, "tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
    ),
    "a schema the engine cannot keep to": (
        {"messages": HI, "response_format": {"type": "json_object"}},
        "response_format",
    ),
    "top_logprobs alone": ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
}


@pytest.mark.parametrize(("body", "param"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_a_bad_request_names_the_field(
    start_gateway: StartGateway, body: Any, param: str | None
) -> None:
    gateway, engine = await start_gateway()
    session = gateway.sessions.open("e")
    status, answer = await post(session, gateway, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert answer["error"]["message"]
    assert engine.num_requests == 0


async def test_what_has_no_effect_is_said(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body = {"messages": HI, "web_search_options": {}, "prediction": {"type": "content"}}
    assert (await post(session, gateway, body))[0] == 200
    assert session.notices == [
        "prediction has no effect here",
        "web_search_options has no effect here",
    ]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_of_no_tokens_is_refused(start_gateway: StartGateway, name: str) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    status, body = await post(session, gateway, {"messages": HI, name: 0})
    assert (status, body["error"]["param"]) == (400, name)
    assert not session.turns, "an empty turn would be trained on nothing"
    assert engine.num_requests == 0


async def test_the_older_functions_are_tools(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import CALL, TOOLS

    gateway, _ = await start_gateway(CALL)
    session = gateway.sessions.open("e")
    body = {"messages": HI, "functions": [TOOLS[0]["function"]], "function_call": "auto"}
    _, answer = await post(session, gateway, body)
    assert answer["choices"][0]["message"]["function_call"]["name"] == "calculator"


async def test_functions_beside_tools_are_tools_too(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import CALL, TOOLS

    gateway, _ = await start_gateway([CALL, CALL.replace("calculator", "clock")])
    session = gateway.sessions.open("e")
    functions = [{"name": "calculator"}, {"name": "clock"}]
    called = []
    for _ in range(2):
        body = {"messages": HI, "tools": TOOLS, "functions": functions}
        _, answer = await post(session, gateway, body)
        called += answer["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in called] == ["calculator", "clock"]


@pytest.mark.parametrize("path", ["nothing", "responses/compact"])
async def test_an_unknown_url_is_a_404_in_the_same_shape(
    start_gateway: StartGateway, path: str
) -> None:
    gateway, _ = await start_gateway()
    status, body = await post(gateway.sessions.open("e"), gateway, {}, path=path)
    assert (status, body["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        ("/v1/chat/completions", "GET", "POST"),
        ("/v1/messages", "PUT", "POST"),
        ("/s/e/v1/reward", "GET", "POST"),
        ("/v1/models", "POST", "GET, HEAD"),
        ("/control/sessions", "DELETE", "GET, HEAD, POST"),
    ],
)
async def test_another_method_is_a_405_that_names_those_that_work(
    start_gateway: StartGateway, path: str, method: str, allow: str
) -> None:
    gateway, _ = await start_gateway()
    url = f"{gateway.base_url.removesuffix('/v1')}{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url) as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, allow)
        error = (await reply.json())["error"]
    assert (error["code"], method in error["message"]) == ("method_not_allowed", True)


async def test_an_unknown_url_is_a_404_whatever_it_holds(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    root = gateway.base_url
    assert (await get(f"{root}/models/a%0Ab"))[1]["error"]["code"] == "unknown_url"
    status, body = await get(f"{root}/messages/batches")
    assert (status, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")


async def test_a_large_body_is_read_and_a_huge_one_refused(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", max_context=4_000_000)
    session = gateway.sessions.open("e")
    large = [{"role": "user", "content": "word " * 300_000}]
    assert (await post(session, gateway, {"messages": large}))[0] == 200
    status, body = await post(session, gateway, b" " * 50_000_000)
    assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_lone_surrogates_are_replaced(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a\\ud83d b\\u0000"}]}'
    status, _ = await post(session, gateway, body)
    assert status == 200
    assert "a\ufffd b\x00" in engine.decode(engine.requests[0].tokens)


async def test_context_overflow_has_the_code_that_agents_look_for(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(max_context=32)
    session = gateway.sessions.open("e")
    long: Any = [{"role": "user", "content": "long " * 99}]
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(model="policy", messages=long)
    assert error.value.code == "context_length_exceeded"
    assert session.truncated


class _WatchedEngine(ScriptedEngine):
    """Says when a request begins and when its slot is free again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begun = asyncio.Event()
        self.freed = asyncio.Event()

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        self.begun.set()
        try:
            async with aclosing(
                cast(AsyncGenerator[GenerateChunk, None], super().stream(request))
            ) as it:
                async for chunk in it:
                    yield chunk
        finally:
            self.freed.set()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(
    start_gateway: StartGateway, stream: bool
) -> None:
    script = Reply("never ends", fault=Fault.HANG, after=3)
    gateway, engine = await start_gateway(script, engine_class=_WatchedEngine)
    assert isinstance(engine, _WatchedEngine)
    session = gateway.sessions.open("e")
    url = f"{session.base_url(gateway.base_url)}/chat/completions"
    async with aiohttp.ClientSession() as http:
        if stream:
            async with http.post(url, json={**ASK, "stream": True}) as reply:
                await reply.content.readline()
        else:
            request = asyncio.create_task(http.post(url, json=ASK))
            await asyncio.wait_for(engine.begun.wait(), 60)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
    await asyncio.wait_for(engine.freed.wait(), 60)
    assert session.turns == []
    assert session.faults == []


async def test_a_retry_gets_the_answer_that_was_lost(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(["one", "two"])
    session = gateway.sessions.open("e")
    body = {"messages": HI}
    first = await post(session, gateway, body)
    retry = await post(session, gateway, body, headers={"x-stainless-retry-count": "1"})
    assert retry == first
    assert engine.num_requests == 1
    again = await post(session, gateway, body, headers={"x-stainless-retry-count": "0"})
    assert again[1]["choices"][0]["message"]["content"] == "two"
    assert len(session.turns) == 2


async def test_a_retry_gets_the_stream_that_was_lost(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(["one", "two"])
    session = gateway.sessions.open("e")
    body = {"messages": HI, "stream": True}
    first = await post(session, gateway, body)
    assert await post(session, gateway, body, headers={"x-stainless-retry-count": "2"}) == first
    assert engine.num_requests == 1


async def test_the_retry_of_one_that_failed_is_not_given_anothers_answer(
    start_gateway: StartGateway,
) -> None:
    """Two equal requests, as for best of two; the second fails and is sent again."""
    gateway, _ = await start_gateway(["one", Reply(fault=Fault.RAISE), "two"])
    session = gateway.sessions.open("e")
    body = {"messages": HI}
    await post(session, gateway, body)
    assert (await post(session, gateway, body))[0] == 503
    retried = {"x-stainless-retry-count": "1"}
    _, second = await post(session, gateway, body, headers=retried)
    assert second["choices"][0]["message"]["content"] == "two"
    _, lost = await post(session, gateway, body, headers=retried)
    assert lost == second
    assert len(session.turns) == 2


async def test_an_error_before_the_first_token_has_its_own_status(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(Reply(fault=Fault.RAISE))
    session = gateway.sessions.open("e")
    status, body = await post(session, gateway, {"messages": HI, "stream": True})
    assert (status, body["error"]["code"]) == (503, "engine_error")


async def test_an_error_in_mid_stream_is_an_event(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(Reply("some words", fault=Fault.RAISE, after=3))
    session = gateway.sessions.open("e")
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        messages: Any = HI
        stream = await client.chat.completions.create(
            model="policy", messages=messages, stream=True
        )
        with pytest.raises(openai.APIError, match="scripted fault"):
            async for _ in stream:
                pass
    assert session.turns == []
    assert len(session.faults) == 1


@pytest.mark.parametrize("after", [0, 3])
async def test_an_answer_that_broke_off_is_a_fault_though_asking_again_helps(
    start_gateway: StartGateway, after: int
) -> None:
    """A fault is forgotten while it is a status that SDKs retry; half an answer has been read."""
    gateway, engine = await start_gateway(
        [Reply("some words", fault=Fault.RAISE, after=after), "whole"]
    )
    session = gateway.sessions.open("e")
    body = {"messages": HI, "stream": True}
    first = await post(session, gateway, body)
    assert len(session.faults) == 1
    retried = {"x-stainless-retry-count": "1"}
    status, events = await post(session, gateway, body, headers=retried)
    assert status == 200
    assert str(events).endswith("data: [DONE]\n\n"), "it is not given the half that was sent"
    assert [turn.message["content"] for turn in session.turns] == ["whole"]
    assert engine.num_requests == 2
    if after:
        assert first[0] == 200
        assert session.faults == ["the engine failed: scripted fault"]
    else:
        assert first[0] == 503
        assert session.faults == []


async def test_sdk_retries_survive_one_engine_fault(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway([Reply(fault=Fault.RAISE), "fine"])
    session = gateway.sessions.open("e")
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        messages: Any = HI
        answer = await client.chat.completions.create(model="policy", messages=messages)
    assert answer.choices[0].message.content == "fine"
    assert len(session.turns) == 1
    assert session.faults == [], "the agent never saw it, so the episode is sound"


async def test_a_streams_last_chunk_has_what_the_whole_answer_has(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("fine")
    session = gateway.sessions.open("e")
    body = {"messages": HI, "return_token_ids": True}
    _, whole = await post(session, gateway, body)
    _, raw = await post(session, gateway, {**body, "stream": True})
    first, *_, last = [json.loads(e.removeprefix("data: ")) for e in raw.split("\n\n") if "{" in e]
    turn, _ = session.turns
    assert whole["prompt_token_ids"] == first["prompt_token_ids"] == list(turn.prompt_tokens)
    assert "prompt_token_ids" not in last, "once is enough"
    assert whole["choices"][0]["token_ids"] == list(turn.output_tokens)
    assert last["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    for name in ("system_fingerprint", "service_tier"):
        assert last[name] == whole[name]


async def test_logprobs_are_shown_with_their_bytes(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("é!")
    session = gateway.sessions.open("e")
    body = {"messages": HI, "logprobs": True, "top_logprobs": 2}
    _, answer = await post(session, gateway, body)
    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "é!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert [e["logprob"] for e in content] == list(session.turns[0].logprobs[: len(content)])


async def test_streams_of_several_choices_are_told_apart(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(["first", "second"])
    session = gateway.sessions.open("e")
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        messages: Any = HI
        stream = await client.chat.completions.create(
            model="policy", messages=messages, stream=True, n=2
        )
        texts = {0: "", 1: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert sorted(texts.values()) == ["first", "second"]


async def test_a_tool_choice_begins_the_answer(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import TOOLS

    gateway, engine = await start_gateway('{"expression": "1"}}\n</tool_call>')
    session = gateway.sessions.open("e")
    choice = {"type": "function", "function": {"name": "calculator"}}
    body = {"messages": HI, "tools": TOOLS, "tool_choice": choice}
    _, answer = await post(session, gateway, body)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "calculator", "arguments": '{"expression":"1"}'}
    assert engine.decode(engine.requests[0].tokens).endswith(
        '<tool_call>\n{"name": "calculator", "arguments": '
    )


async def test_tool_choice_none_reads_no_calls(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import CALL, TOOLS

    gateway, _ = await start_gateway(CALL)
    session = gateway.sessions.open("e")
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "none"}
    _, answer = await post(session, gateway, body)
    assert answer["choices"][0]["message"]["content"] == CALL
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_template_that_refuses_is_a_400(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(shape="mistral")
    session = gateway.sessions.open("e")
    call = {"id": "short", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "short", "content": "1"}
    messages = [*HI, {"role": "assistant", "tool_calls": [call]}, result]
    status, body = await post(session, gateway, {"messages": messages})
    assert status == 400
    assert "nine characters" in body["error"]["message"]
