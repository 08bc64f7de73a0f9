"""Answers held to a JSON schema: a real engine, real clients, all three wire formats."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel, Field

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models import resolve_model
from areal_sdk.types import Exclusion
from tests.toolbox.gateway_requests import HI

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Any = HI


class Verdict(BaseModel):
    good: bool
    score: int = Field(ge=0, le=9)


SCHEMA = {
    "type": "object",
    "properties": {"good": {"type": "boolean"}},
    "required": ["good"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    model_dir = resolve_model("tiny")
    engine = LocalEngine(
        model_dir, log_dir=tmp_path_factory.mktemp("logs"), options=LocalOptions(max_context=2048)
    )
    await engine.start()
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="policy")
    await gateway.start()
    yield gateway
    await gateway.aclose()
    await engine.aclose()


async def test_openai_parses_an_answer_into_its_model(gateway: Gateway) -> None:
    session = gateway.sessions.open("chat")
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        done = await client.chat.completions.parse(
            model="policy", messages=MESSAGES, response_format=Verdict
        )
        assert isinstance(done.choices[0].message.parsed, Verdict)
        answer = await client.responses.parse(model="policy", input="Hi", text_format=Verdict)
        assert isinstance(answer.output_parsed, Verdict)
        async with client.chat.completions.stream(
            model="policy", messages=MESSAGES, response_format=Verdict
        ) as stream:
            final = await stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Verdict)
        loose = await client.chat.completions.create(
            model="policy",
            messages=MESSAGES,
            response_format={"type": "json_object"},
            max_tokens=20,
        )
        assert (loose.choices[0].message.content or "").lstrip().startswith("{")
    assert {turn.excluded for turn in session.turns} == {Exclusion.GRAMMAR}
    session.close()


async def test_anthropics_output_format_is_held_to(gateway: Gateway) -> None:
    session = gateway.sessions.open("messages")
    base_url = session.base_url(gateway.base_url).removesuffix("/v1")
    async with AsyncAnthropic(base_url=base_url, api_key=session.key) as client:
        message = await client.messages.create(
            model="policy",
            max_tokens=200,
            messages=[{"role": "user", "content": "Hi"}],
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )
    (block,) = message.content
    assert block.type == "text"
    assert isinstance(json.loads(block.text)["good"], bool)
    session.close()


async def test_a_schema_that_cannot_be_enforced_is_a_400_that_names_the_field(
    gateway: Gateway,
) -> None:
    session = gateway.sessions.open("refused")
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}
    async with AsyncOpenAI(
        base_url=session.base_url(gateway.base_url), api_key=session.key
    ) as client:
        with pytest.raises(BadRequestError, match="Unimplemented keys") as refused:
            await client.chat.completions.create(
                model="policy", messages=MESSAGES, response_format=schema
            )
    assert refused.value.param == "response_format"
    assert (session.turns, session.faults) == ([], [])
    session.close()
