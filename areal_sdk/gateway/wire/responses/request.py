"""Turns requests of the responses API into the internal request, and keeps the fields that the response repeats."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.sampling.request import ChatRequest, ToolChoice, ToolUse
from areal_sdk.gateway.wire.fields import (
    Fields,
    parse_response_format,
    parse_sampling,
    require,
    strings,
)
from areal_sdk.gateway.wire.responses.items import Item, ResponseStore, to_messages
from areal_sdk.gateway.wire.tools import Toolbox, response_tools
from areal_sdk.types import Message

_ACCEPTED = (
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "stream_options",
    "max_tool_calls",
    "client_metadata",
)

_WITHOUT_EFFECT = ("access_programs", "background_options", "context_management", "moderation")
"""Fields that ask for services of OpenAI. The policy answers all the same without them, so a notice is enough."""

_LOGPROBS = "message.output_text.logprobs"

INCLUDABLE = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values of `include`. All but the first two concern images, or OpenAI's own tools, so there is nothing to include."""


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A parsed request to `/v1/responses`."""

    request: ChatRequest
    stream: bool
    keeps: bool
    """Whether the response is stored."""
    background: bool
    input_items: list[Item]
    conversation: tuple[Message, ...]
    """The conversation before the response, without instructions."""
    echo: dict[str, Any]
    """The fields that the response object repeats."""
    tools: Toolbox


def parse(
    fields: Fields, store: ResponseStore, raw_inputs: MutableMapping[str, str]
) -> ResponsesCall:
    """The call that the body of a request asks for. `raw_inputs` is the session's record of malformed arguments."""
    require(fields.text("model"), "model")
    call = parse_input(fields, store, raw_inputs)
    fields.accept(*_ACCEPTED)
    fields.accept_with_notice(*_WITHOUT_EFFECT)
    fields.refuse("conversation", "use previous_response_id")
    fields.refuse("prompt", "prompt templates are not stored here")
    fields.refuse("image", "only text is generated")
    fields.refuse_unknown()
    return call


def parse_count(
    fields: Fields, store: ResponseStore, raw_inputs: MutableMapping[str, str]
) -> ChatRequest:
    """The prompt of a request to count its tokens. Such a request need not name a model."""
    call = parse_input(fields, store, raw_inputs)
    fields.accept("model", "personality", *_ACCEPTED, *_WITHOUT_EFFECT)
    fields.refuse("conversation", "use previous_response_id")
    fields.refuse_unknown()
    return call.request


def parse_input(
    fields: Fields, store: ResponseStore, raw_inputs: MutableMapping[str, str]
) -> ResponsesCall:
    """The call, read from the fields that requests for a response and for a count of tokens share."""
    previous, instructions = fields.text("previous_response_id"), fields.text("instructions")
    given = fields.get("input")
    if given is None and previous is None and instructions is None:
        raise bad_request(
            "Missing required parameter: 'input'", param="input", code="missing_required_parameter"
        )
    items = _parse_items([] if given is None else given)
    tools = Toolbox([*response_tools(fields)], raw_inputs)
    said = to_messages(items, store.item, raw_inputs)
    if previous is not None:
        said = [*store.previous(previous).conversation, *said]
    text_format = _parse_text_format(fields)
    request = _parse_request(fields, tools, instructions, said, text_format)
    keeps = fields.flag("store", default=True)
    background = fields.flag("background")
    if background and not keeps:
        raise bad_request("background needs store to be true", param="background")
    return ResponsesCall(
        request,
        stream=fields.flag("stream"),
        keeps=keeps,
        background=background,
        input_items=items,
        conversation=tuple(said),
        echo={
            **_echo(fields, request, text_format),
            "background": background,
            "instructions": instructions,
            "previous_response_id": previous,
            "store": keeps,
        },
        tools=tools,
    )


def _parse_items(value: Any) -> list[Item]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise bad_request("input must be a string or a list of items", param="input")
    wrong = next((i for i, item in enumerate(value) if not isinstance(item, dict)), None)
    if wrong is not None:
        raise bad_request(f"input[{wrong}] must be an object", param=f"input[{wrong}]")
    return value


def _parse_request(
    fields: Fields,
    tools: Toolbox,
    instructions: str | None,
    conversation: Sequence[Message],
    text_format: dict[str, Any],
) -> ChatRequest:
    include = strings(fields.items("include") or (), "include")
    if unknown := set(include).difference(INCLUDABLE):
        raise bad_request(f"include {sorted(unknown)[0]!r} is not supported", param="include")
    top_logprobs = fields.integer("top_logprobs", least=0, most=20) or 0
    system: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    messages = (*system, *conversation)
    if not messages:
        raise bad_request("input is empty: send at least one item", param="input")
    return ChatRequest(
        messages=messages,
        tools=tools.tools,
        tool_choice=_parse_tool_choice(fields.get("tool_choice"), tools),
        parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
        max_new_tokens=fields.integer("max_output_tokens", least=1),
        sampling=parse_sampling(fields),
        logprobs=_LOGPROBS in include or top_logprobs > 0,
        num_top_logprobs=top_logprobs,
        json_schema=parse_response_format(_chat_format(text_format)),
        schema_field="text.format",
        drops_oldest=fields.choice("truncation", ("auto", "disabled")) == "auto",
    )


def _echo(fields: Fields, request: ChatRequest, text_format: dict[str, Any]) -> dict[str, Any]:
    reasoning = fields.mapping("reasoning") or {}
    choice = fields.get("tool_choice")
    return {
        "max_output_tokens": request.max_new_tokens,
        "max_tool_calls": fields.get("max_tool_calls"),
        "metadata": fields.mapping("metadata") or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": "default",
        "temperature": request.sampling.get("temperature", 1.0),
        "text": {
            "format": text_format,
            "verbosity": (fields.mapping("text") or {}).get("verbosity") or "medium",
        },
        "tool_choice": "auto" if choice is None else choice,
        "tools": [
            {"strict": False, "parameters": None, **tool} if tool["type"] == "function" else tool
            for tool in fields.items("tools") or ()
        ],
        "top_logprobs": request.num_top_logprobs,
        "top_p": request.sampling.get("top_p", 1.0),
        "frequency_penalty": request.sampling.get("frequency_penalty", 0.0),
        "presence_penalty": request.sampling.get("presence_penalty", 0.0),
        "truncation": "auto" if request.drops_oldest else "disabled",
        "user": fields.get("user"),
    }


def _parse_tool_choice(value: Any, tools: Toolbox) -> ToolChoice:
    if value is None or (isinstance(value, str) and value in set(ToolUse)):
        if value == ToolUse.REQUIRED and not tools.tools:
            raise bad_request("tool_choice 'required' needs tools", param="tool_choice")
        return ToolChoice(ToolUse(value or "auto"))
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "allowed_tools":
        return tools.choice_among(value.get("mode"), value.get("tools"))
    if kind in ("function", "custom"):
        return tools.choice(value.get("name"), value.get("namespace"))
    raise bad_request(
        "tool_choice must be auto, none, required, a tool's name or allowed_tools",
        param="tool_choice",
    )


def _parse_text_format(fields: Fields) -> dict[str, Any]:
    text = Fields(fields.mapping("text") or {})
    return text.mapping("format") or {"type": "text"}


def _chat_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """The `text.format` of this API, which is flat, nested as in chat completions."""
    if text_format.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": text_format}
    return text_format
