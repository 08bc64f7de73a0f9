"""`/v1/completions`: token-level clients."""

import json
from typing import Any

import pytest

from areal_sdk.engine import GenerateRequest
from areal_sdk.testing import Reply
from areal_sdk.types import ForkReason
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import client_for, get, post


async def test_token_ids_are_continued_and_recorded(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(["one", "two"])
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        first = await client.completions.create(model="policy", prompt=[1, 2, 3], logprobs=1)
        assert first.choices[0].text == "one"
        logprobs = first.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs == list(session.turns[0].logprobs)
        longer = [1, 2, 3, *session.turns[0].output_tokens, 7]
        await client.completions.create(model="policy", prompt=longer)
    assert [turn.parent for turn in session.turns] == [None, 0]
    assert engine.requests[0].tokens == (1, 2, 3)


async def test_several_prompts_have_their_choices(start_gateway: StartGateway) -> None:
    def repeat(request: GenerateRequest) -> Reply:
        return Reply(request.tokens)

    gateway, _ = await start_gateway(repeat)
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        answer = await client.completions.create(
            model="policy", prompt=["ab", "cd"], n=2, echo=True
        )
    assert [choice.text for choice in answer.choices] == ["abab", "abab", "cdcd", "cdcd"]


async def test_a_stream_adds_up(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("Hello there")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        stream = await client.completions.create(model="policy", prompt="x", stream=True, echo=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(texts) == "xHello there"
    assert len(texts) > 3


async def test_the_token_ids_of_each_prompt_and_answer_are_returned(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("Hello there")
    session = gateway.sessions.open("e")
    body = {"prompt": ["ab", "cd"], "n": 2, "echo": True, "return_token_ids": True}
    _, whole = await post(session, gateway, body, path="completions")
    shown = [(c["prompt_token_ids"], c["token_ids"]) for c in whole["choices"]]
    assert shown == [(list(t.prompt_tokens), list(t.output_tokens)) for t in session.turns]
    _, raw = await post(session, gateway, {**body, "stream": True}, path="completions")
    streamed: dict[int, tuple[list[int], list[int]]] = {}
    for event in raw.split("\n\n"):
        for choice in json.loads(event.removeprefix("data: "))["choices"] if "{" in event else ():
            prompt, output = streamed.setdefault(choice["index"], ([], []))
            prompt += choice.get("prompt_token_ids") or []
            output += choice.get("token_ids") or []
    assert [streamed[index] for index in range(4)] == shown
    _, without = await post(session, gateway, {"prompt": "ab"}, path="completions")
    assert without["choices"][0].keys().isdisjoint({"prompt_token_ids", "token_ids"})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
    "an unknown token": ({"prompt": [99_999_999]}, "prompt"),
    "mixed": ({"prompt": [1, "a"]}, "prompt"),
    "best of": ({"prompt": "a", "best_of": 4}, "best_of"),
    "a suffix": ({"prompt": "a", "suffix": "b"}, "suffix"),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD)
async def test_a_bad_request_names_the_field(
    start_gateway: StartGateway, body: dict[str, Any], param: str
) -> None:
    gateway, _ = await start_gateway()
    status, answer = await post(gateway.sessions.open("e"), gateway, body, path="completions")
    assert (status, answer["error"]["param"]) == (400, param)


async def test_there_are_no_embeddings(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    status, body = await post(gateway.sessions.open("e"), gateway, {}, path="embeddings")
    assert (status, body["error"]["code"]) == (404, "no_embeddings"), "a status that nobody retries"


async def test_metrics_count_what_happened(start_gateway: StartGateway) -> None:
    import aiohttp

    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    await post(session, gateway, body)
    await post(session, gateway, body)
    await post(session, gateway, {})
    assert session.turns[1].fork is ForkReason.RESAMPLED
    await get(f"{gateway.base_url}/models")
    url = gateway.base_url.replace("/v1", "/metrics")
    async with aiohttp.ClientSession() as http, http.get(url) as reply:
        lines = (await reply.text()).splitlines()
    assert "areal_sdk_turns_total 2" in lines
    assert "areal_sdk_sessions 1" in lines
    assert 'areal_sdk_forks_total{reason="resampled"} 1' in lines
    assert 'areal_sdk_errors_total{code="missing_required_parameter"} 1' in lines
    assert 'areal_sdk_errors_total{code="invalid_api_key"} 1' in lines
    assert "areal_sdk_turn_seconds_count 2" in lines
