"""Anthropic's message requests as the internal request."""

from collections.abc import Iterator
from typing import Any

import orjson

from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.sampling.request import ChatRequest, ToolChoice, ToolUse
from areal_sdk.gateway.sessions.canonical import check_text, join_text, part_text
from areal_sdk.gateway.wire.anthropic_tools import message_tools
from areal_sdk.gateway.wire.fields import Fields, check_stops, named_tool_choice, require
from areal_sdk.types import Message, Tool

_ACCEPTED = (
    "metadata",
    "speed",
    "service_tier",
    "cache_control",
    "betas",
    "inference_geo",
    "context_management",
    "user_profile_id",
    "workspace_id",
    "billing_policy",
    "fallbacks",
    "fallback_credit_token",
)

_IGNORED_BLOCKS = ("redacted_thinking",)


def parse(fields: Fields, *, max_new_tokens: int | None) -> ChatRequest:
    tools = tuple(message_tools(fields))
    choice = fields.mapping("tool_choice") or {}
    thinking = fields.mapping("thinking") or {}
    messages = tuple(_parse_messages(fields))
    prefill = ""
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        prefill = _parse_prefill(messages[-1], choice, thinking)
        messages = messages[:-1]
    if not messages:
        raise bad_request("messages: none of them says anything", param="messages")
    request = ChatRequest(
        messages=messages,
        prefill=prefill,
        tools=tools,
        tool_choice=_parse_tool_choice(choice, tools),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        max_new_tokens=max_new_tokens,
        stop=check_stops(fields.items("stop_sequences") or (), "stop_sequences"),
        sampling=_parse_sampling(fields),
        json_schema=_parse_output_schema(fields),
        schema_field="output_config.format",
        template_options=_thinking_options(thinking),
    )
    fields.get("model")  # one is served, whatever it is called
    fields.accept(*_ACCEPTED)
    fields.refuse("mcp_servers", "tools are called by the client")
    fields.refuse("container", "nothing is executed here")
    fields.refuse("thread", "conversations are not kept here: send all messages")
    fields.refuse("compaction", "the client shortens its conversation")
    fields.refuse("diagnostics", "how the engine caches prompts is not told")
    fields.refuse_unknown()
    return request


def _parse_output_schema(fields: Fields) -> dict[str, Any] | None:
    output = Fields(fields.mapping("output_config") or {})
    output.accept("effort")
    given = output.mapping("format") or fields.mapping("output_format")
    if given is None:
        return None
    schema = given.get("schema")
    if given.get("type") != "json_schema" or not isinstance(schema, dict):
        raise bad_request("output_config.format must be a json_schema", param="output_config")
    return schema


def _thinking_options(thinking: dict[str, Any]) -> dict[str, Any]:
    """The option of the chat template that lets the model think or not; empty if the template is to decide."""
    kind = thinking.get("type")
    if kind == "disabled":
        return {"enable_thinking": False}
    return {"enable_thinking": True} if kind == "enabled" else {}


def _parse_sampling(fields: Fields) -> dict[str, Any]:
    given = {
        "temperature": fields.number("temperature", least=0.0, most=1.0),
        "top_p": fields.number("top_p", least=0.0, most=1.0),
        "top_k": fields.integer("top_k", least=0),
    }
    return {name: value for name, value in given.items() if value is not None}


def _parse_messages(fields: Fields) -> Iterator[Message]:
    system = fields.get("system")
    if system:
        yield {"role": "system", "content": join_text(system, param="system")}
    messages = require(fields.items("messages"), "messages")
    if not messages:
        raise bad_request("messages: at least one message is required", param="messages")
    for index, message in enumerate(messages):
        yield from _parse_message(message, f"messages.{index}")


def _parse_prefill(message: Message, tool_choice: dict[str, Any], thinking: dict[str, Any]) -> str:
    """The beginning of the answer, which the client wrote as the last message."""
    text: str = message["content"]
    if not text or text != text.rstrip() or message.keys() != {"role", "content"}:
        raise bad_request(
            "messages: an answer that is begun must be text that does not end with white space",
            param="messages",
        )
    if thinking.get("type") == "enabled" or tool_choice.get("type") in ("any", "tool"):
        raise bad_request(
            "messages: an answer that is begun can neither think first nor be a tool call",
            param="messages",
        )
    return text


def _parse_message(message: Any, where: str) -> Iterator[Message]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise bad_request(f"{where}.role must be 'user' or 'assistant'", param=f"{where}.role")
    content = message.get("content")
    if content is None and role == "system":
        return  # it changes settings, and says nothing
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise bad_request(f"{where}.content must be a string or blocks", param=f"{where}.content")
    if role == "assistant":
        yield _parse_answer(blocks, where)
    elif role == "system":
        yield {"role": "system", "content": join_text(blocks, param=f"{where}.content")}
    else:
        yield from _parse_user(blocks, where)


def _parse_user(blocks: list[dict[str, Any]], where: str) -> Iterator[Message]:
    """The messages of a user's turn: one for each tool result, then one with all the text."""
    texts = []
    for index, block in enumerate(blocks):
        param = f"{where}.content.{index}"
        if block.get("type") == "tool_result":
            content = _result_text(block, param)
            call = check_text(block.get("tool_use_id"), f"{param}.tool_use_id")
            yield {"role": "tool", "tool_call_id": call, "content": content}
        else:
            texts.append(part_text(block, param=param))
    if texts:
        yield {"role": "user", "content": "".join(texts)}


def _result_text(block: dict[str, Any], param: str) -> str:
    """The answer of a tool. An error begins with "Error", whatever words the client has for it."""
    text = join_text(block.get("content"), param=param)
    is_told = not block.get("is_error") or text.casefold().lstrip().startswith("error")
    return text if is_told else f"Error: {text}"


def _parse_answer(blocks: list[dict[str, Any]], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        param = f"{where}.content.{index}"
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_parse_call(block, param))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind not in _IGNORED_BLOCKS:
            texts.append(part_text(block, param=param))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _parse_call(block: dict[str, Any], param: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise bad_request(f"{param} needs a name and an input", param=param)
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    call_id = check_text(block.get("id"), f"{param}.id")
    return {"id": call_id, "type": "function", "function": function}


def _parse_tool_choice(choice: dict[str, Any], tools: tuple[Tool, ...]) -> ToolChoice:
    match choice.get("type", "auto"):
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice(ToolUse.NONE)
        case "any" if tools:
            return ToolChoice(ToolUse.REQUIRED)
        case "tool":
            return named_tool_choice(choice.get("name"), tools)
        case kind:
            raise bad_request(
                f"tool_choice.type {kind!r} is not possible here", param="tool_choice"
            )
