"""Items of the responses API turned into chat messages, and the message of a turn turned into items.

The module also keeps the responses that a session stored, for `previous_response_id` and for retrieval.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.sessions.canonical import check_text, join_text
from areal_sdk.gateway.wire.tools import ShownCall, Toolbox, custom_arguments, name_in
from areal_sdk.types import Message

Item = dict[str, Any]

_ROLES = frozenset({"system", "developer", "user", "assistant"})


def to_messages(
    items: Sequence[Any], find: Callable[[str], Item | None], raw_inputs: Mapping[str, str]
) -> list[Message]:
    """Chat messages for `items`. Several items of one answer become one message again.

    `find` looks up items that are given only by id. `raw_inputs` is the session's record of malformed arguments.
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
    """The assistant message that an item belongs to: `answer`, or a new message if `answer` is None."""
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


_KEPT = 1000

_CURE = (
    "Responses are stored in their session, and a key alone speaks in a new one at each request: "
    "name a session, by the key KEY/NAME or the address /s/NAME/v1."
)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: dict[str, Any]
    input_items: list[Item]
    conversation: tuple[Message, ...]
    """The conversation up to and including the response, without instructions."""
    events: tuple[bytes, ...] = ()
    """The stream of a response that was made in the background: event i has sequence number i."""


class ResponseStore:
    """The latest thousand responses of one session."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, Item] = {}

    def add(self, stored: StoredResponse) -> None:
        self._responses[stored.response["id"]] = stored
        self._items.update((item["id"], item) for item in stored.response["output"])
        if len(self._responses) > _KEPT:
            self.delete(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse:
        stored = self._responses.get(response_id)
        if stored is None:
            raise ApiError(
                404,
                f"Response with id '{response_id}' not found. {_CURE}",
                param="id",
                code="response_not_found",
            )
        return stored

    def previous(self, response_id: str) -> StoredResponse:
        """The response that a request continues. If the session does not store it, a 400 that names the field."""
        if response_id not in self._responses:
            raise ApiError(
                400,
                f"Previous response with id '{response_id}' not found. {_CURE}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._responses[response_id]

    def delete(self, response_id: str) -> None:
        stored = self.get(response_id)
        del self._responses[response_id]
        for item in stored.response["output"]:
            self._items.pop(item["id"], None)

    def item(self, item_id: str) -> Item | None:
        return self._items.get(item_id)


def with_ids(items: list[Any]) -> list[Item]:
    """Input items in the form in which they are listed: each with an id, a type and a status."""
    listed = []
    for item in items:
        kind = item.get("type") or "message"
        prefix = {
            "message": "msg",
            "reasoning": "rs",
            "function_call": "fc",
            "custom_tool_call": "ctc",
        }.get(kind, "item")
        whole = {"id": new_id(prefix), "status": "completed", **item, "type": kind}
        if isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            whole["content"] = [{"type": part, "text": item["content"]}]
            if part == "output_text":
                whole["content"][0]["annotations"] = []
        listed.append(whole)
    return listed
