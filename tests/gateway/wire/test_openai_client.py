"""The official openai client, over real HTTP."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from areal_sdk.testing import Reply
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import CALL, TOOLS, client_for


async def test_a_chat_is_answered_and_recorded(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("Hello there")
    session = gateway.sessions.open("e1")
    async with client_for(gateway, session) as client:
        answer = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Hi"}]
        )
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].finish_reason == "stop"
    (turn,) = session.turns
    assert turn.output_tokens == (*engine.encode("Hello there"), engine.info.stop_tokens[0])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(turn.output_tokens)
    assert answer.usage.prompt_tokens == len(turn.prompt_tokens)


async def test_a_tool_loop_extends_the_recorded_tokens(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway([CALL, "2"])
    session = gateway.sessions.open("e1")
    messages: list[Any] = [{"role": "user", "content": "1+1?"}]
    async with client_for(gateway, session) as client:
        first = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
        message = first.choices[0].message
        assert message.tool_calls is not None
        assert first.choices[0].finish_reason == "tool_calls"
        call = message.tool_calls[0]
        assert call.type == "function"
        assert call.function.name == "calculator"
        assert json.loads(call.function.arguments) == {"expression": "1+1"}
        messages.append(message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "2"})
        second = await client.chat.completions.create(
            model="policy", messages=messages, tools=TOOLS
        )
    assert second.choices[0].message.content == "2"
    one, two = session.turns
    recorded = one.prompt_tokens + one.output_tokens
    assert two.parent == 0
    assert two.fork is None
    assert two.prompt_tokens[: len(recorded)] == recorded
    added = engine.decode(two.prompt_tokens[len(recorded) :])
    assert added == (
        "\n<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_a_stream_comes_token_by_token(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("Hello there, you")
    session = gateway.sessions.open("e1")
    async with client_for(gateway, session) as client:
        stream = await client.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert "".join(texts) == "Hello there, you"
    assert len(texts) == len(engine.encode("Hello there, you"))
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-2])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(session.turns[0].output_tokens)


async def test_a_streamed_tool_call_is_one_the_client_can_read(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(f"I will.\n{CALL}")
    session = gateway.sessions.open("e1")
    async with (
        client_for(gateway, session) as client,
        client.chat.completions.stream(
            model="policy", messages=[{"role": "user", "content": "1+1?"}], tools=TOOLS
        ) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "I will."
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"expression": "1+1"}
    assert final.choices[0].finish_reason == "tool_calls"


async def test_the_synchronous_client_works_with_the_key_alone(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("sync")
    session = gateway.sessions.open("e1")

    def ask() -> str | None:
        with OpenAI(base_url=gateway.base_url, api_key=session.key) as client:
            answer = client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Hi"}]
            )
        return answer.choices[0].message.content

    assert await asyncio.to_thread(ask) == "sync"
    assert len(session.turns) == 1


async def test_a_closed_session_refuses_late_requests(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    session = gateway.sessions.open("e1")
    session.close()
    async with client_for(gateway, session) as client:
        with pytest.raises(openai.ConflictError, match="closed"):
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Hi"}]
            )
    assert engine.num_requests == 0


async def test_a_stop_string_is_hidden_but_its_tokens_are_kept(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(Reply("one STOP two"))
    session = gateway.sessions.open("e1")
    async with client_for(gateway, session) as client:
        answer = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Hi"}], stop=["STOP"]
        )
    assert answer.choices[0].message.content == "one "
    assert engine.decode(session.turns[0].output_tokens) == "one STOP"
