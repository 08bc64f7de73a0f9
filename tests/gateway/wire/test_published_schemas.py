"""Every body and every streamed event against the SDKs' own models, strictly: no coercion, nothing
required missing, nothing extra. And our OpenAPI document against the same models.
"""

import json
from typing import Any, get_args

import anthropic.types as anthropic
import openai.types as openai
import pytest
from openai.types import chat, responses
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from pydantic import BaseModel

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.openapi import openapi_document
from areal_sdk.testing import Fault, Reply
from tests.gateway.conftest import StartGateway
from tests.gateway.published import (
    HONOURED,
    OPEN_RESPONSES,
    OURS,
    PUBLISHED,
    event_model,
    events_of,
    problems,
)
from tests.toolbox.gateway_requests import HI, TOOLS, get, post

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'
SAID = {
    "a text": "I will.",
    "a thought, a text and a call": f"<think>\nhm\n</think>\n\nI will.\n{CALL}",
    "two calls": f"{CALL}\n{CALL}",
    "nothing": "",
    "a thought without an end": "<think>\nhm",
    "a call that cannot be read": "Well.\n<tool_call>\n{oops\n</tool_call>",
}


FLAT_TOOL: dict[str, Any] = {"type": "function", "strict": False, **TOOLS[0]["function"]}
"""The tool as the responses API writes it."""
ANTHROPIC_TOOL = {"name": "calculator", "input_schema": TOOLS[0]["function"]["parameters"]}
THINKS = {"type": "enabled", "budget_tokens": 1024}

ASKED: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "chat": (
        "chat/completions",
        {"messages": HI, "tools": TOOLS, "stream_options": {"include_usage": True}},
        chat.ChatCompletion,
        chat.ChatCompletionChunk,
    ),
    "chat with logprobs": (
        "chat/completions",
        {"messages": HI, "tools": TOOLS, "logprobs": True, "top_logprobs": 2, "n": 2},
        chat.ChatCompletion,
        chat.ChatCompletionChunk,
    ),
    "chat cut short": (
        "chat/completions",
        {"messages": HI, "tools": TOOLS, "max_completion_tokens": 1},
        chat.ChatCompletion,
        chat.ChatCompletionChunk,
    ),
    "text": (
        "completions",
        {"prompt": "x", "echo": True, "max_tokens": 200, "n": 2},
        openai.Completion,
        openai.Completion,
    ),
    "text with logprobs": (
        "completions",
        {"prompt": ["x", "y"], "logprobs": 2, "max_tokens": 2},
        openai.Completion,
        openai.Completion,
    ),
    "responses": (
        "responses",
        {"input": "Hi", "tools": [FLAT_TOOL], "instructions": "s", "metadata": {"a": "b"}},
        responses.Response,
        responses.ResponseStreamEvent,
    ),
    "responses with logprobs": (
        "responses",
        {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        responses.Response,
        responses.ResponseStreamEvent,
    ),
    "responses cut short": (
        "responses",
        {"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 1, "store": False},
        responses.Response,
        responses.ResponseStreamEvent,
    ),
    "messages": (
        "messages",
        {"messages": HI, "max_tokens": 200, "tools": [ANTHROPIC_TOOL], "thinking": THINKS},
        anthropic.Message,
        anthropic.RawMessageStreamEvent,
    ),
    "messages cut short": (
        "messages",
        {"messages": HI, "max_tokens": 1, "stop_sequences": ["w"]},
        anthropic.Message,
        anthropic.RawMessageStreamEvent,
    ),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_bodies_and_events_are_what_the_sdks_say(
    start_gateway: StartGateway, asked: str
) -> None:
    now = [""]
    gateway, _ = await start_gateway(lambda request: now[-1], shape="qwen3")
    for said, text in SAID.items():
        now.append(text)
        await check_one(gateway, said, *ASKED[asked])


async def check_one(
    gateway: Gateway, said: str, path: str, body: dict[str, Any], whole: Any, event: Any
) -> None:
    session = gateway.sessions.open(said)
    status, answer = await post(session, gateway, body, path=path)
    assert status == 200
    assert problems(answer, whole) == []
    status, stream = await post(session, gateway, {**body, "stream": True}, path=path)
    assert status == 200
    events = events_of(stream)
    assert events
    found = {
        p for e in events if e.get("type") != "ping" for p in problems(e, event_model(event, e))
    }
    if path == "completions":
        # One model describes whole answers and chunks; only the last chunk says why it ended.
        found = {p for p in found if "finish_reason" not in p}
    assert found == set()
    if path == "responses":
        assert [e["sequence_number"] for e in events] == list(range(len(events)))


async def test_what_is_stored_listed_and_counted_is_what_the_sdks_say(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(SAID["a thought, a text and a call"], shape="qwen3")
    session = gateway.sessions.open("e")
    url = session.base_url(gateway.base_url)
    body = {"input": "Hi", "tools": [FLAT_TOOL]}
    _, made = await post(session, gateway, body, path="responses")
    assert (await get(f"{url}/responses/{made['id']}"))[1] == made
    _, listed = await get(f"{url}/responses/{made['id']}/input_items")
    assert problems(listed, responses.ResponseItemList) == []
    _, counted = await post(session, gateway, body, path="responses/input_tokens")
    assert problems(counted, responses.InputTokenCountResponse) == []
    _, models = await get(f"{url}/models")
    assert [p for model in models["data"] for p in problems(model, openai.Model)] == []
    asked = {"messages": HI}
    _, tokens = await post(session, gateway, asked, path="messages/count_tokens")
    assert problems(tokens, anthropic.MessageTokensCount) == []


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_errors_are_what_the_sdks_say(start_gateway: StartGateway, path: str) -> None:
    broken = Reply("some words", fault=Fault.RAISE, after=3)
    gateway, _ = await start_gateway([broken, Reply(fault=Fault.RAISE)], shape="qwen3")
    session = gateway.sessions.open("e")
    body = next(body for asked_path, body, _, _ in ASKED.values() if asked_path == path)
    body = {key: value for key, value in body.items() if key not in ("n", "echo")}
    _, stream = await post(session, gateway, {**body, "stream": True}, path=path)
    *_, last = events_of(stream)
    refused = [await post(session, gateway, {**body, "nonsense": 1}, path=path)]
    refused.append(await post(session, gateway, body, path=path))
    assert [status for status, _ in refused] == [400, 503]
    errors = [error for _, error in refused]
    if path == "responses":
        assert problems(last, responses.ResponseErrorEvent) == []
    else:
        errors.append(last)
    for error in errors:
        if path == "messages":
            assert problems(error, anthropic.ErrorResponse) == []
        else:
            assert problems(error["error"], openai.shared.ErrorObject) == []


DESCRIBED: dict[str, type[BaseModel]] = {
    "ChatCompletion": chat.ChatCompletion,
    "Completion": openai.Completion,
    "Response": responses.Response,
    "Model": openai.Model,
    "Message": anthropic.Message,
}
REQUESTED: dict[str, Any] = {
    "ChatRequest": ChatParams,
    "CompletionRequest": CompletionParams,
    "ResponseRequest": ResponseCreateParamsBase,
    "MessagesRequest": anthropic.message_create_params.MessageCreateParamsBase,
    "CountRequest": anthropic.MessageCountTokensParams,
}
EXTENSIONS = {
    *("top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "return_token_ids"),
    *("temperature", "top_p"),  # older SDKs of Anthropic's send them
    *("presence_penalty", "frequency_penalty", "logit_bias"),  # Open Responses has them
    "client_metadata",  # Codex sends it
    "stream",  # the SDKs have it in models of their own
    # of Anthropic's beta clients
    *(
        "betas",
        "billing_policy",
        "context_management",
        "fallback_credit_token",
        "fallbacks",
        "output_format",
    ),
    # what is counted may be the request that is sent afterwards
    *("inference_geo", "metadata", "service_tier", "stop_sequences"),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_document_promises_what_the_sdks_require(name: str) -> None:
    schema = openapi_document()["components"]["schemas"][name]
    model = DESCRIBED[name]
    wanted = {n for n, field in model.model_fields.items() if field.is_required()}
    wanted |= PUBLISHED.get(model, set())
    assert wanted - set(schema["required"]) == set()
    assert set(schema["required"]) - schema["properties"].keys() == set()
    assert schema["properties"].keys() - model.model_fields.keys() - OURS - OPEN_RESPONSES == set()
    constants = {n: p["const"] for n, p in schema["properties"].items() if "const" in p}
    for field, value in constants.items():
        assert value in get_args(model.model_fields[field].annotation)


@pytest.mark.parametrize("name", REQUESTED)
def test_the_document_asks_for_what_the_sdks_send(name: str) -> None:
    schema = openapi_document()["components"]["schemas"][name]
    known = REQUESTED[name].__annotations__.keys() | EXTENSIONS
    assert schema["properties"].keys() - known == set()
    assert set(schema["required"]) <= set(REQUESTED[name].__annotations__)


@pytest.mark.parametrize("name", REQUESTED)
async def test_no_field_that_the_sdks_can_send_is_unheard_of(
    start_gateway: StartGateway, name: str
) -> None:
    """Honoured, accepted or refused with a reason, but known: a null is as if it were not there."""
    kind = {"ChatRequest": "chat", "CompletionRequest": "text", "ResponseRequest": "responses"}
    path, body, _, _ = ASKED[kind.get(name, "messages")]
    if name == "CountRequest":
        path, body = f"{path}/count_tokens", {"messages": HI}
    gateway, _ = await start_gateway("ok", shape="qwen3")
    session = gateway.sessions.open("e")
    nothing = dict.fromkeys(REQUESTED[name].__annotations__)
    status, answer = await post(session, gateway, {**nothing, "model": "m", **body}, path=path)
    assert status == 200, answer


def test_the_document_names_every_field_of_chat_that_is_honoured() -> None:
    schema = openapi_document()["components"]["schemas"]["ChatRequest"]
    assert HONOURED - schema["properties"].keys() == set()


async def test_the_document_requires_what_the_gateway_requires(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    paths = {"ChatRequest": "chat", "CompletionRequest": "text", "MessagesRequest": "messages"}
    for name, asked in paths.items():
        path, body, _, _ = ASKED[asked]
        required = openapi_document()["components"]["schemas"][name]["required"]
        whole = {"model": "policy", **body}
        for field in required:
            without = json.dumps({k: v for k, v in whole.items() if k != field}).encode()
            status, error = await post(session, gateway, without, path=path)
            assert status == 400, (name, field)
            assert field in error["error"]["message"]


def test_a_missing_an_extra_a_wrong_and_a_coerced_field_are_found() -> None:
    """The check itself can fail."""
    whole: Any = {"id": "m", "created": 1, "object": "model", "owned_by": "x"}
    assert problems(whole, openai.Model) == []
    assert problems({**whole, "colour": "red"}, openai.Model) == ["Model.colour is extra"]
    assert len(problems({**whole, "owned_by": None}, openai.Model)) == 1
    assert len(problems({**whole, "created": "1"}, openai.Model)) == 1
    assert len(problems({**whole, "object": "list"}, openai.Model)) == 1
    del whole["object"]
    assert len(problems(whole, openai.Model)) == 1
    message = {"role": "assistant", "content": "x"}
    absent = problems(message, chat.ChatCompletionMessage)
    assert absent == ["ChatCompletionMessage.refusal is absent"]
