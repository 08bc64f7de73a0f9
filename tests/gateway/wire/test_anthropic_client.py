"""`/v1/messages` with Anthropic's own client."""

import json
from typing import Any

import pytest

from areal_sdk.gateway import Gateway, Session
from areal_sdk.testing import Fault, Reply
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import CALL, HI, post

anthropic = pytest.importorskip("anthropic")

TOOLS: list[Any] = [
    {
        "name": "calculator",
        "description": "Evaluate an expression.",
        "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
    }
]


def client_for(gateway: Gateway, session: Session) -> Any:
    base = session.base_url(gateway.base_url).removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base, api_key=session.key)


async def test_a_message_is_answered(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("Hello there")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        message = await client.messages.create(
            model="policy",
            max_tokens=50,
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            messages=HI,
        )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "Hello there"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len(session.turns[0].output_tokens)
    assert "Be brief." in engine.decode(engine.requests[0].tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_with_thinking_extends_the_turn(
    start_gateway: StartGateway, stream: bool
) -> None:
    thought = f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}"
    gateway, _ = await start_gateway([thought, "2"], shape="qwen3")
    session = gateway.sessions.open("e")
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]
    options: Any = {
        "model": "policy",
        "max_tokens": 2000,
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    async with client_for(gateway, session) as client:
        if stream:
            async with client.messages.stream(messages=messages, **options) as events:
                first: Any = await events.get_final_message()
        else:
            first = await client.messages.create(messages=messages, **options)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert first.stop_reason == "tool_use"
        use = first.content[-1]
        assert use.input == {"expression": "1+1"}
        messages.append({"role": "assistant", "content": [b.model_dump() for b in first.content]})
        for block in messages[-1]["content"]:
            block.pop("citations", None)
            block.pop("parsed_output", None)
            block.pop("caller", None)
        result = {
            "type": "tool_result",
            "tool_use_id": use.id,
            "content": [{"type": "text", "text": "2"}],
        }
        messages.append({"role": "user", "content": [result]})
        second = await client.messages.create(messages=messages, **options)
    assert second.content[0].type == "text"
    assert [(turn.parent, turn.fork) for turn in session.turns] == [(None, None), (0, None)]


async def test_a_stream_has_its_events_in_order(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(f"See.\n{CALL}")
    session = gateway.sessions.open("e")
    body = {"max_tokens": 99, "messages": HI, "tools": TOOLS, "stream": True}
    _, text = await post(session, gateway, body, path="messages")
    kinds = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    collapsed = [k for i, k in enumerate(kinds) if k != kinds[i - 1] or "delta" not in k]
    assert collapsed == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert events[0]["message"]["usage"]["input_tokens"] == len(session.turns[0].prompt_tokens)
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1]


async def test_a_stop_sequence_is_reported(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("one STOP two")
    session = gateway.sessions.open("e")
    body = {"max_tokens": 99, "messages": HI, "stop_sequences": ["STOP"]}
    _, answer = await post(session, gateway, body, path="messages")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")


async def test_tokens_are_counted_without_a_turn(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        counted = await client.messages.count_tokens(model="policy", messages=HI, tools=TOOLS)
        await client.messages.create(model="policy", max_tokens=9, messages=HI, tools=TOOLS)
    assert counted.input_tokens == len(session.turns[0].prompt_tokens)
    assert engine.num_requests == 1


async def test_openais_address_works_too(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    base = session.base_url(gateway.base_url)
    async with anthropic.AsyncAnthropic(base_url=base, api_key="unused") as client:
        await client.messages.create(model="policy", max_tokens=9, messages=HI)
    assert len(session.turns) == 1


async def test_errors_have_anthropics_shape(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(Reply("words", fault=Fault.RAISE, after=1), max_context=64)
    session = gateway.sessions.open("e")
    long: Any = [{"role": "user", "content": "long " * 99}]
    async with client_for(gateway, session) as client:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(model="policy", max_tokens=9, messages=long)
        with pytest.raises(anthropic.APIStatusError, match="scripted fault"):
            async with client.messages.stream(model="policy", max_tokens=9, messages=HI) as events:
                await events.get_final_message()
    async with anthropic.AsyncAnthropic(
        base_url=gateway.base_url.removesuffix("/v1"), api_key="wrong"
    ) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(model="policy", max_tokens=9, messages=HI)


@pytest.mark.parametrize("shape", ["qwen2.5", "qwen3"])
async def test_an_answer_that_the_client_began_is_continued(
    start_gateway: StartGateway, shape: str
) -> None:
    gateway, engine = await start_gateway(["B) Helios", " and more", "Yes."], shape=shape)
    session = gateway.sessions.open("e")
    begun: list[Any] = [*HI, {"role": "assistant", "content": "The answer is ("}]
    async with client_for(gateway, session) as client:
        asked: Any = {"model": "policy", "max_tokens": 50, "tools": TOOLS}
        first = await client.messages.create(**asked, messages=begun)
        assert [block.text for block in first.content if block.type == "text"] == ["B) Helios"]
        async with client.messages.stream(**asked, messages=begun) as stream:
            assert "".join([text async for text in stream.text_stream]) == " and more"
        whole = {"role": "assistant", "content": "The answer is (B) Helios"}
        again: list[Any] = [*HI, whole, {"role": "user", "content": "Sure?"}]
        await client.messages.create(**asked, messages=again)
    assert engine.decode(engine.requests[0].tokens).endswith("The answer is (")
    assert [turn.parent for turn in session.turns] == [None, None, 0]
    assert session.turns[0].message["content"] == "The answer is (B) Helios"


BAD: dict[str, Any] = {
    "no max_tokens": {"messages": HI},
    "no messages": {"max_tokens": 9},
    "an answer begun with a space at its end": {
        "max_tokens": 9,
        "messages": [*HI, {"role": "assistant", "content": "A "}],
    },
    "a thought begun": {
        "max_tokens": 9,
        "messages": [*HI, {"role": "assistant", "content": "A"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "a hosted tool": {
        "max_tokens": 9,
        "messages": HI,
        "tools": [{"type": "code_execution_20250825", "name": "c"}],
    },
    "an image": {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image"}]}]},
    "an unknown field": {"max_tokens": 9, "messages": HI, "colour": 1},
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_a_bad_request_is_a_400(start_gateway: StartGateway, body: Any) -> None:
    gateway, engine = await start_gateway()
    status, answer = await post(gateway.sessions.open("e"), gateway, body, path="messages")
    assert (status, answer["type"], answer["error"]["type"]) == (
        400,
        "error",
        "invalid_request_error",
    )
    assert engine.num_requests == 0


@pytest.mark.parametrize("suffix", ["", "/v1"])
async def test_either_form_of_the_address_lists_the_model(
    start_gateway: StartGateway, suffix: str
) -> None:
    gateway, _ = await start_gateway()
    base = gateway.base_url.removesuffix("/v1") + suffix
    async with anthropic.AsyncAnthropic(base_url=base, api_key=gateway.admin_key) as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
        assert (await client.models.retrieve("policy")).type == "model"
