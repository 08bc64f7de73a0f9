"""Requests to another provider, in any wire format, as chat messages and further fields.

The reading is lenient, because the provider decides what is valid. Unknown fields stay as they came.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from areal_sdk.routes import TextRequest
from areal_sdk.types import Message, Tool

_CONVERSATION = ("messages", "input", "prompt", "system", "instructions", "tools")
"""Fields of the conversation, which `TextRequest` has under names of its own. All other fields go into
`asked`."""


def read_request(body: Any) -> TextRequest:
    """The request in a body of any wire format; empty if the body is no request."""
    if not isinstance(body, dict):
        return TextRequest(())
    asked = {name: value for name, value in body.items() if name not in _CONVERSATION}
    tools = body.get("tools")
    previous = body.get("previous_response_id")
    return TextRequest(
        prompts=tuple(_prompts(body)),
        tools=tuple(map(chat_tool, tools)) if isinstance(tools, list) else (),
        asked=asked,
        previous_id=previous if isinstance(previous, str) else None,
    )


def chat_tool(tool: Any) -> Any:
    """A function as chat completions declare it, the form in which the policy is told of tools.

    The fields are in the order in which our gateway tells them: a model that learns from what was
    recorded then sees the same tokens. Tools of other kinds stay as they came.
    """
    match tool:
        case {"type": "function", "name": str()}:  # of the responses API
            names = ("name", "description", "parameters", "strict")
            return _function({name: tool[name] for name in names if tool.get(name) is not None})
        case {"name": str(name), "input_schema": dict(schema)}:  # of Anthropic
            about = tool.get("description")
            described = {} if about is None else {"description": about}
            return _function({"name": name, **described, "parameters": schema})
        case _:
            return tool


def _function(function: dict[str, Any]) -> Tool:
    return {"type": "function", "function": function}


def _prompts(body: Mapping[str, Any]) -> list[tuple[Message, ...]]:
    if "prompt" in body and "messages" not in body and "input" not in body:
        return [(_prompt(prompt),) for prompt in _split_prompts(body["prompt"])]
    system = body.get("system") or body.get("instructions")
    opening = [{"role": "system", "content": plain_text(system)}] if system else []
    given = body.get("messages") or body.get("input") or ()
    if isinstance(given, str):
        return [(*opening, {"role": "user", "content": given})]
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    read: Callable[[Sequence[Any]], list[Message]] = (
        messages_of_items if "input" in body else _messages_of_blocks
    )
    return [(*opening, *read(items))]


def _split_prompts(prompt: Any) -> list[Any]:
    """The prompts of a completions request: a string, token ids, or a list of either."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return prompt
    return [prompt]


def _prompt(prompt: Any) -> Message:
    if isinstance(prompt, list):
        return {"role": "user", "content": None, "tokens": prompt}
    return {"role": "user", "content": prompt}


def _messages_of_blocks(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Chat messages from Anthropic's: blocks become fields, and each result of a tool becomes a message."""
    found: list[Message] = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        results = [b for b in blocks if isinstance(b, dict) and b.get("type") == "tool_result"]
        for block in results:
            text = plain_text(block.get("content"))
            failed = {"is_error": True} if block.get("is_error") else {}
            call = block.get("tool_use_id")
            found.append({"role": "tool", "tool_call_id": call, "content": text, **failed})
        rest = [block for block in blocks if block not in results]
        if message.get("role") == "assistant":
            found.append(assistant_message({**message, "content": rest if blocks else content}))
        elif rest or not results:
            found.append({**message, "content": plain_text(rest if blocks else content)})
    return found


def assistant_message(given: Mapping[str, Any]) -> Message:
    """An answer as a chat message. Parts of an unexpected type become its `blocks`."""
    content, calls = given.get("content"), given.get("tool_calls")
    odd: list[Any] = []
    if content is None or isinstance(content, str):
        said: Message = {"content": content}
    else:
        said = message_of_blocks(content if isinstance(content, list) else [content])
        odd += said.pop("blocks", ())
    if calls is not None:
        listed = calls if isinstance(calls, list) else [calls]
        said["tool_calls"] = [call for call in listed if _is_call(call)]
        odd += [call for call in listed if not _is_call(call)]
    rest = _without(given, "content", "tool_calls", "role")
    return {"role": "assistant", **rest, **said, **({"blocks": odd} if odd else {})}


def _is_call(call: Any) -> bool:
    match call:
        case {"function": {"name": str(), "arguments": str() | dict() | None}}:
            return True
        case {"type": "custom", "custom": dict()}:
            return True
        case _:
            return False


def message_of_blocks(blocks: Sequence[Any]) -> Message:
    """An assistant's message from Anthropic's blocks; blocks of other kinds are kept as they are."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    others: list[Any] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "tool_use", "name": name}:
                arguments = block.get("input")
                text = arguments if isinstance(arguments, str) else _dump(arguments or {})
                calls.append(make_call(block.get("id"), name, text))
            case _:
                others.append(block)
    return make_message("".join(texts), "".join(thoughts), calls, blocks=others)


def messages_of_items(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Chat messages from the items of the responses API. One answer's items become one message."""
    found: list[Message] = []
    run: list[Mapping[str, Any]] = []
    for item in items:
        if _is_answer(item):
            run.append(item)
            continue
        if run:
            found.append(message_of_items(run))
            run = []
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            output = plain_text(item.get("output"))
            call = item.get("call_id")
            found.append({"role": "tool", "tool_call_id": call, "content": output})
        else:
            found.append({**_without(item, "type"), "content": plain_text(item.get("content"))})
    return [*found, message_of_items(run)] if run else found


def _is_answer(item: Mapping[str, Any]) -> bool:
    if "role" in item:
        return bool(item["role"] == "assistant")
    return not str(item.get("type")).endswith("_output")


def message_of_items(items: Sequence[Any]) -> Message:
    """An assistant's message from output items; items of other kinds are kept as they are."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    others: list[Any] = []
    for item in items:
        match item:
            case {"type": "function_call", "name": name}:
                calls.append(make_call(item.get("call_id"), name, item.get("arguments") or ""))
            case {"type": "custom_tool_call", "name": name}:
                calls.append(make_call(item.get("call_id"), name, item.get("input") or ""))
            case {"type": "reasoning"}:
                said = item.get("content") or item.get("summary")
                thoughts.append(str(plain_text(said) or ""))
            case {"content": content} if item.get("type", "message") == "message":
                texts.append(str(plain_text(content) or ""))
            case _:
                others.append(item)
    return make_message("".join(texts), "".join(thoughts), calls, output=others)


def make_message(
    text: str, thought: str, calls: Sequence[Mapping[str, Any]], **others: Sequence[Any]
) -> Message:
    """An assistant's chat message. `others` are the parts that a chat message has no place for."""
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = list(calls)
    return message | {name: list(parts) for name, parts in others.items() if parts}


def make_call(call_id: Any, name: Any, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def plain_text(content: Any) -> Any:
    """The text of a content that is text alone. A content with images and the like stays as it came."""
    if not isinstance(content, list):
        return content
    texts = [_part_text(part) for part in content]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else content  # type: ignore[arg-type]


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    match part:
        case {"text": str(text)} | {"refusal": str(text)}:
            return text
        case _:
            return None


def _without(item: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()
