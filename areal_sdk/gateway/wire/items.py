"""The items of the responses API as chat messages, and a turn's message as items."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from areal_sdk.gateway.canonical import check_text, join_text
from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.wire.tools import ShownCall, Toolbox, custom_arguments, name_in
from areal_sdk.types import Message

Item = dict[str, Any]

_ROLES = frozenset({"system", "developer", "user", "assistant"})


def to_messages(
    items: Sequence[Any], find: Callable[[str], Item | None], raw_inputs: Mapping[str, str]
) -> list[Message]:
    """Chat messages for `items`. What one answer said in several items becomes one message again.

    `find` looks up items that are only referred to by id; `raw_inputs` are the session's.
    """
    messages: list[Message] = []
    answer: Message | None = None
    for index, item in enumerate(items):
        where = f"input[{index}]"
        item = _resolve(item, where, find)
        kind = item.get("type") or "message"
        if kind == "reasoning":
            answer = _answer(messages, None)
            answer["reasoning_content"] = _reasoning_text(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            answer = _answer(messages, answer)
            answer.setdefault("tool_calls", []).append(_call(item, where, raw_inputs))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            answer = None
            messages.append(_result(item, where))
        elif kind == "message":
            answer = _message(item, where, messages, answer)
        else:
            raise bad_request(f"{where}: items of type {kind!r} are not supported", param=where)
    return messages


def _resolve(item: Any, where: str, find: Callable[[str], Item | None]) -> Item:
    if not isinstance(item, dict):
        raise bad_request(f"{where} must be an object", param=where)
    is_reference = item.get("type") == "item_reference" or item.keys() == {"id"}
    if not is_reference:
        return item
    found = find(str(item.get("id")))
    if found is None:
        raise bad_request(f"{where}: no item {item.get('id')!r} is stored here", param=where)
    return found


def _answer(messages: list[Message], answer: Message | None) -> Message:
    """The assistant message that an item belongs to: the open one, or a new one."""
    if answer is None:
        answer = {"role": "assistant", "content": None}
        messages.append(answer)
    return answer


def _message(
    item: Item, where: str, messages: list[Message], answer: Message | None
) -> Message | None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad_request(f"{where}.role is {role!r}", param=f"{where}.role")
    text = join_text(item.get("content"), param=f"{where}.content")
    if role != "assistant":
        messages.append({"role": role, "content": text})
        return None
    if answer is not None and answer.get("tool_calls") and answer["content"]:
        answer["content"] += f"\n{text}"  # what a stream said after its calls
        return answer
    is_said = answer is not None and answer["content"] is not None
    answer = _answer(messages, None if is_said else answer)
    answer["content"] = text
    return answer


def _call(item: Item, where: str, raw_inputs: Mapping[str, str]) -> dict[str, Any]:
    is_custom = item.get("type") == "custom_tool_call"
    name, given = item.get("name"), item.get("input" if is_custom else "arguments")
    if not isinstance(name, str) or not isinstance(given, str):
        what = "an input" if is_custom else "arguments"
        raise bad_request(f"{where} needs a name and {what}", param=where)
    namespace = check_text(item.get("namespace"), f"{where}.namespace")
    call_id = check_text(item.get("call_id"), f"{where}.call_id")
    arguments = custom_arguments(given, call_id, raw_inputs) if is_custom else given
    function = {"name": name_in(namespace, name), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _result(item: Item, where: str) -> Message:
    content = join_text(item.get("output"), param=f"{where}.output")
    call_id = check_text(item.get("call_id"), f"{where}.call_id")
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _reasoning_text(item: Item, where: str) -> str:
    parts = item.get("content") or []
    if not isinstance(parts, list):
        raise bad_request(f"{where}.content must be a list", param=f"{where}.content")
    return join_text(parts, param=f"{where}.content")


def from_message(message: Mapping[str, Any], tools: Toolbox, *, status: str) -> Iterator[Item]:
    """The output items of a turn: reasoning, text, calls."""
    if message.get("reasoning_content"):
        yield reasoning_item(message["reasoning_content"])
    if message.get("content") or not message.get("tool_calls"):
        yield text_item(message.get("content") or "", status=status)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        shown = tools.shown(call["id"], function["name"], function["arguments"])
        yield call_item(call["id"], shown, status=status)


def reasoning_item(text: str, *, id: str | None = None, status: str = "completed") -> Item:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {
        "id": id or new_id("rs"),
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def text_item(text: str | None, *, id: str | None = None, status: str = "completed") -> Item:
    return {
        "id": id or new_id("msg"),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
    }


def call_item(call_id: str, shown: ShownCall, *, status: str = "completed") -> Item:
    item: Item = {"call_id": call_id, "name": shown.name}
    if shown.namespace is not None:
        item["namespace"] = shown.namespace
    if shown.is_custom:
        return {"id": new_id("ctc"), "type": "custom_tool_call", **item, "input": shown.text}
    head = {"id": new_id("fc"), "type": "function_call", "status": status}
    return {**head, **item, "arguments": shown.text}


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
