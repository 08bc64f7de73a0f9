"""`/v1/responses` with the official client: stateless, stored, streamed."""

import json
from typing import Any

import openai
import pytest

from areal_sdk.testing import Reply
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import CALL, client_for, get, post

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "calculator",
        "description": "Evaluate an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        "strict": False,
    }
]


async def test_a_string_is_answered(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("Hello there")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        response = await client.responses.create(
            model="policy", input="Hi", instructions="Be brief.", max_output_tokens=50
        )
    assert response.output_text == "Hello there"
    assert response.status == "completed"
    assert response.instructions == "Be brief."
    assert response.usage is not None
    assert response.usage.output_tokens == len(session.turns[0].output_tokens)
    assert response.error is None


async def test_a_replayed_tool_loop_extends_the_turn(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(
        [f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}", "2"], shape="qwen3"
    )
    session = gateway.sessions.open("e")
    items: list[Any] = [{"role": "user", "content": "1+1?"}]
    async with client_for(gateway, session) as client:
        first = await client.responses.create(model="policy", input=items, tools=TOOLS, store=False)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        call = first.output[-1]
        assert call.type == "function_call"
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "2"})
        second = await client.responses.create(
            model="policy", input=items, tools=TOOLS, store=False
        )
    assert second.output_text == "2"
    assert [(turn.parent, turn.fork) for turn in session.turns] == [(None, None), (0, None)]


async def test_a_stored_response_is_continued_by_its_id(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway([CALL, "2", "4"])
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        first = await client.responses.create(model="policy", input="1+1?", tools=TOOLS)
        call = first.output[0]
        assert call.type == "function_call"
        second = await client.responses.create(
            model="policy",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "2"}],
            tools=TOOLS,
        )
        third = await client.responses.create(
            model="policy", previous_response_id=second.id, input="2+2?", tools=TOOLS
        )
        assert third.previous_response_id == second.id
        again = await client.responses.retrieve(second.id)
        assert again.output_text == "2"
        items = await client.responses.input_items.list(first.id)
        assert [item.type for item in items.data] == ["message"]
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError, match="not found") as error:
            await client.responses.create(
                model="policy", previous_response_id=second.id, input="more"
            )
    assert error.value.param == "previous_response_id"
    assert [turn.parent for turn in session.turns] == [None, 0, 1]
    assert all(turn.fork is None for turn in session.turns)


async def test_a_key_alone_that_goes_on_from_a_response_is_told_to_name_a_session(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok")
    url, key = gateway.base_url, gateway.admin_key
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        first = await client.responses.create(model="policy", input="Hi")
        with pytest.raises(openai.BadRequestError, match="KEY/NAME or the address /s/"):
            await client.responses.create(
                model="policy", input="more", previous_response_id=first.id
            )
        named = client.with_options(api_key=f"{key}/conv1")
        first = await named.responses.create(model="policy", input="Hi")
        await named.responses.create(model="policy", input="more", previous_response_id=first.id)


async def test_a_session_cannot_read_what_another_stored(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    mine, other = gateway.sessions.open("mine"), gateway.sessions.open("other")
    _, response = await post(mine, gateway, {"input": "Hi"}, path="responses")
    for base, key, status in (
        (mine.base_url(gateway.base_url), "", 200),
        (other.base_url(gateway.base_url), "", 404),
        (gateway.base_url, other.key, 404),
        (gateway.base_url, gateway.admin_key, 404),
    ):
        assert (await get(f"{base}/responses/{response['id']}", key))[0] == status


async def test_input_tokens_are_counted_without_a_turn(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        counted = await client.responses.input_tokens.count(input="Hi", tools=TOOLS)
        assert engine.num_requests == 0
        await client.responses.create(model="policy", input="Hi", tools=TOOLS)
    assert counted.input_tokens == len(session.turns[0].prompt_tokens)


def _kinds(text: str) -> list[str]:
    return [line[7:] for line in text.splitlines() if line.startswith("event: ")]


async def test_a_stream_has_its_events_in_order(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(f"<think>\nhm\n</think>\n\nSee.\n{CALL}", shape="qwen3")
    session = gateway.sessions.open("e")
    body = {"input": "Hi", "tools": TOOLS, "stream": True}
    _, text = await post(session, gateway, body, path="responses")
    kinds = _kinds(text)
    collapsed = [k for i, k in enumerate(kinds) if not k.endswith("delta") or k != kinds[i - 1]]
    prefix = "response."
    assert [k.removeprefix(prefix) for k in collapsed] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["type"] for e in events] == kinds
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


async def test_the_client_puts_a_stream_together(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(["Hello there, you", "more"])
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        async with client.responses.stream(model="policy", input="Hi") as stream:
            deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        assert response.output_text == "Hello there, you" == "".join(deltas)
        assert len(deltas) > 3
        await client.responses.create(
            model="policy", input="go on", previous_response_id=response.id
        )
    assert session.turns[1].parent == 0


async def test_a_stream_that_says_nothing_has_an_empty_message(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("")
    session = gateway.sessions.open("e")
    async with (
        client_for(gateway, session) as client,
        client.responses.stream(model="policy", input="Hi") as stream,
    ):
        response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == ""


async def test_a_response_that_was_cut_is_incomplete(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("one two three four")
    session = gateway.sessions.open("e")
    _, body = await post(
        session, gateway, {"input": "Hi", "max_output_tokens": 2}, path="responses"
    )
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_logprobs_come_with_the_text(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(Reply("Hi"))
    session = gateway.sessions.open("e")
    asked = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    _, body = await post(session, gateway, asked, path="responses")
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs) == "Hi"


async def test_a_background_response_is_streamed_again_and_cancelled(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("Hello there")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        asked: Any = {"model": "policy", "input": "Hi", "background": True}
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        made = events[-1].response
        again = await client.responses.retrieve(made.id, stream=True)
        assert [event async for event in again] == events
        rest = await client.responses.retrieve(made.id, stream=True, starting_after=2)
        assert [event async for event in rest] == events[3:]
        assert await client.responses.cancel(made.id) == made
        plain = await client.responses.create(model="policy", input="Hi")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(plain.id)
        with pytest.raises(openai.BadRequestError, match="streamed again"):
            await client.responses.retrieve(plain.id, stream=True)
    assert engine.num_requests == 2


async def test_input_items_are_listed_by_page(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    async with client_for(gateway, session) as client:
        said: Any = [{"role": "user", "content": f"question {i}"} for i in range(5)]
        made = await client.responses.create(model="policy", input=said)
        listed: Any = client.responses.input_items.list(made.id, order="asc", limit=2)
        texts = [item.content[0].text async for item in listed]
    assert texts == [f"question {i}" for i in range(5)]


async def test_truncation_leaves_the_oldest_questions_out(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok", max_context=120)
    session = gateway.sessions.open("e")
    said = [
        {"role": role, "content": f"{role} {i} " + "x " * 20}
        for i in range(4)
        for role in ("user", "assistant")
    ]
    body = {"input": [*said, {"role": "user", "content": "last"}], "instructions": "Be brief."}
    status, refused = await post(session, gateway, body, path="responses")
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    status, _ = await post(session, gateway, {**body, "truncation": "auto"}, path="responses")
    assert status == 200
    prompt = engine.decode(engine.requests[0].tokens)
    assert "Be brief." in prompt
    assert "last" in prompt
    assert "user 0" not in prompt
    assert len(session.notices) == 1
    long = {"input": "x " * 500, "truncation": "auto"}
    assert (await post(session, gateway, long, path="responses"))[0] == 400


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({}, "input"),
    "a number": ({"input": 3}, "input"),
    "an item that is text": ({"input": ["x"]}, "input[0]"),
    "an unknown item": ({"input": [{"type": "computer_call"}]}, "input[0]"),
    "an unknown reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    "a hosted tool": ({"input": "x", "tools": [{"type": "file_search"}]}, "tools[0]"),
    "background, unstored": ({"input": "x", "background": True, "store": False}, "background"),
    "a conversation": ({"input": "x", "conversation": "c"}, "conversation"),
    "unknown include": ({"input": "x", "include": ["everything"]}, "include"),
    "unknown field": ({"input": "x", "colour": 1}, "colour"),
    "a schema": (
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}}},
        "text.format",
    ),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD)
async def test_a_bad_request_names_the_field(
    start_gateway: StartGateway, body: dict[str, Any], param: str
) -> None:
    gateway, engine = await start_gateway()
    status, answer = await post(gateway.sessions.open("e"), gateway, body, path="responses")
    assert (status, answer["error"]["param"]) == (400, param)
    assert engine.num_requests == 0
