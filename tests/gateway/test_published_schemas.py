"""Objects and events against the SDKs' own models: nothing required is missing, nothing is extra."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.session import Session
from tests.gateway.conftest import StartGateway
from tests.gateway.test_http import HI
from tests.gateway.test_openai_client import TOOLS

SAID = '<think>\nhm\n</think>\n\nI will.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'

OURS = {"reasoning_content", "max_model_len"}
"""What we add on purpose, as others do."""

OPEN_RESPONSES = {"store", "presence_penalty", "frequency_penalty"}
"""Required by the Open Responses specification, sent by OpenAI, and not in its SDK's model."""

FLAT_TOOL: dict[str, Any] = {"type": "function", "strict": False, **TOOLS[0]["function"]}
"""The tool as the responses API writes it."""


def problems(value: Any, at: str = "") -> Iterator[str]:
    """Where `value`, as an SDK built it without checking, is not what its model says."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(item, f"{at}[{index}]")
    elif isinstance(value, BaseModel):
        for name in (value.model_extra or {}).keys() - OURS - OPEN_RESPONSES:
            yield f"{at}.{name} is extra"
        for name, field in type(value).model_fields.items():
            if name in value.model_fields_set:
                inner = getattr(value, name)
                if not _fits(inner, field.annotation):
                    yield f"{at}.{name} is {inner!r}"
                yield from problems(inner, f"{at}.{name}")
            elif field.is_required():
                yield f"{at}.{name} is missing"


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of the annotated kind, as far as its outside tells."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if value is None:
        return annotation in (None, type(None), Any, object)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return isinstance(value, annotation)
    if annotation in (str, int, float, bool):
        is_number = annotation is float and type(value) is int
        return type(value) is annotation or is_number
    return True


@pytest.fixture
async def session(start_gateway: StartGateway) -> tuple[Gateway, Session]:
    gateway, _ = await start_gateway(SAID, shape="qwen3")
    return gateway, gateway.sessions.open("e")


def client_of(gateway: Gateway, session: Session) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=session.base_url(gateway.base_url), api_key=session.key)


async def test_chat_objects_and_chunks(session: tuple[Gateway, Session]) -> None:
    async with client_of(*session) as client:
        asked: Any = {
            "model": "policy",
            "messages": HI,
            "tools": TOOLS,
            "logprobs": True,
            "top_logprobs": 1,
        }
        done = await client.chat.completions.create(**asked)
        assert list(problems(done)) == []
        chunks = await client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        assert [p async for chunk in chunks for p in problems(chunk)] == []


async def test_text_completions_and_models(session: tuple[Gateway, Session]) -> None:
    async with client_of(*session) as client:
        done = await client.completions.create(model="policy", prompt="x", logprobs=1)
        assert list(problems(done)) == []
        chunks = await client.completions.create(model="policy", prompt="x", stream=True)
        found = {p async for chunk in chunks for p in problems(chunk)}
        # One model describes whole answers and chunks; only the last chunk can say why it ended.
        assert found == {".choices[0].finish_reason is None"}
        assert [p async for model in client.models.list() for p in problems(model)] == []


async def test_responses_their_items_and_every_event(session: tuple[Gateway, Session]) -> None:
    async with client_of(*session) as client:
        asked: Any = {
            "model": "policy",
            "input": "Hi",
            "tools": [FLAT_TOOL],
            "include": ["message.output_text.logprobs"],
            "instructions": "s",
        }
        done = await client.responses.create(**asked)
        assert list(problems(done)) == []
        assert {item.type for item in done.output} == {"reasoning", "message", "function_call"}
        listed = client.responses.input_items.list(done.id)
        assert [p async for item in listed for p in problems(item)] == []
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        found = {p for event in events for p in problems(event, event.type)}
        # openai 2 requires it, openai 3 has it no more: we serve both.
        assert found == {"response.function_call_arguments.done.name is extra"}
        assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_anthropic_messages_and_every_event(session: tuple[Gateway, Session]) -> None:
    gateway, opened = session
    base_url = opened.base_url(gateway.base_url).removesuffix("/v1")
    async with AsyncAnthropic(base_url=base_url, api_key=opened.key) as client:
        tool: Any = {
            "name": "calculator",
            "input_schema": TOOLS[0]["function"]["parameters"],
        }
        asked: Any = {
            "model": "policy",
            "max_tokens": 200,
            "messages": HI,
            "tools": [tool],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        done = await client.messages.create(**asked)
        assert list(problems(done)) == []
        assert [block.type for block in done.content] == ["thinking", "text", "tool_use"]
        events = [event async for event in await client.messages.create(**asked, stream=True)]
        assert [p for event in events for p in problems(event, event.type)] == []
        counted = await client.messages.count_tokens(model="policy", messages=asked["messages"])
        assert list(problems(counted)) == []
        assert [p async for model in client.models.list() for p in problems(model)] == []


def test_a_missing_an_extra_and_a_wrong_field_are_found() -> None:
    """The check itself can fail."""
    whole: Any = {"id": "m", "created": 1, "object": "model", "owned_by": "x"}
    model = openai.types.Model
    assert list(problems(model.construct(**whole))) == []
    assert list(problems(model.construct(**{**whole, "colour": "red"}))) == [".colour is extra"]
    assert list(problems(model.construct(**{**whole, "owned_by": None}))) == [".owned_by is None"]
    del whole["object"]
    assert list(problems(model.construct(**whole))) == [".object is missing"]
    unfinished: Any = {"id": "m", "usage": {"input_tokens": 1}}
    message = anthropic.types.Message.construct(**unfinished)
    assert ".usage.output_tokens is missing" in list(problems(message))
