"""Answers of another provider, in any wire format, whole or streamed: for traces, not for training."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from areal_sdk.routes import TextChoice, TextReply, without_surrogates
from areal_sdk.tool_calls import MAX_DEPTH, is_too_deep
from areal_sdk.types import FinishReason
from areal_sdk_upstream.request import (
    assistant_message,
    make_message,
    message_of_blocks,
    message_of_items,
)

_LONGEST_INTEGER = 18
"""Number of digits that always fit 64 bits. Longer integers cannot be written to files."""
_LENGTH = (
    *("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"),
    "content_filter",  # also an answer without its end
)


def read_reply(raw: bytes, *, is_stream: bool) -> TextReply | None:
    """The reply that `raw` holds, whole or as events; None if it holds none.

    Other content raises errors of many kinds.
    """
    return _join(raw) if is_stream else _whole(_read_json(raw))


def _whole(body: Mapping[str, Any]) -> TextReply:
    """The reply in a body of chat completions, completions, responses or messages."""
    usage = body.get("usage") or {}
    if "choices" in body:
        given = sorted(body["choices"], key=lambda choice: choice.get("index") or 0)
        return TextReply(_id_of(body), tuple(_chat_choice(choice) for choice in given), usage)
    if "output" in body:
        message = message_of_items(body["output"])
        return TextReply(_id_of(body), (TextChoice(message, _response_reason(body)),), usage)
    message = message_of_blocks(body["content"])
    return TextReply(_id_of(body), (TextChoice(message, _reason(body.get("stop_reason"))),), usage)


def _id_of(body: Mapping[str, Any]) -> str:
    """The id of a reply; empty if the provider gives none."""
    found = body.get("id")
    return found if isinstance(found, str) else ""


def _chat_choice(choice: Mapping[str, Any]) -> TextChoice:
    message = choice.get("message") or {"content": choice.get("text", "")}
    return TextChoice(assistant_message(message), _reason(choice.get("finish_reason")))


def _reason(name: str | None) -> FinishReason:
    if name is None:
        return FinishReason.ABORT
    return FinishReason.LENGTH if name in _LENGTH else FinishReason.STOP


def _response_reason(response: Mapping[str, Any]) -> FinishReason:
    match response.get("status"):
        case "completed":
            return FinishReason.STOP
        case "incomplete":
            return _reason((response.get("incomplete_details") or {}).get("reason"))
        case _:
            return FinishReason.ABORT


def _read_json(raw: bytes) -> Any:
    """JSON of a provider, which may be laxer than the standard. A value that is no JSON costs that value alone.

    >>> _read_json(b'{"a": NaN, "b": 1}')
    {'a': None, 'b': 1}
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = without_surrogates(_LAX.decode(raw.decode("utf-8-sig", errors="replace")))
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise ValueError(f"a provider's JSON is nested deeper than {MAX_DEPTH} levels")
    return value


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_LAX = json.JSONDecoder(
    strict=False,
    parse_constant=lambda word: None,
    parse_float=_number,
    parse_int=lambda text: int(text) if len(text) <= _LONGEST_INTEGER else _number(text),
)


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    for line in raw.splitlines():
        if line.startswith(b"data:"):
            try:
                data = _read_json(line[5:])
            except (ValueError, RecursionError):
                continue  # `[DONE]`, or an event that was cut off
            if isinstance(data, dict):
                yield data


def _join(raw: bytes) -> TextReply | None:
    """The reply that events add up to, or its beginning if they break off. Events are read one by one, because all of
    them together take many times the memory of their text.
    """
    for event in _events(raw):
        kind = str(event.get("type"))
        if kind.startswith("response."):
            return _join_response(_events(raw))
        if kind == "message_start":
            return _join_message(_events(raw))
        if event.get("choices"):
            break
    return _join_chat(_events(raw))


def _join_chat(events: Iterable[Mapping[str, Any]]) -> TextReply | None:
    reply_id = ""
    usage: Mapping[str, Any] = {}
    parts: dict[int, _Parts] = {}
    for event in events:
        reply_id = _id_of(event) or reply_id
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            parts.setdefault(choice.get("index") or 0, _Parts()).add(choice)
    choices = tuple(parts[index].choice() for index in sorted(parts))
    return TextReply(reply_id, choices, usage) if choices else None


class _Parts:
    """The answer that the chunks of one choice add up to."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {"content": choice.get("text")}
        self._reason = choice.get("finish_reason") or self._reason
        for name, piece in delta.items():
            if isinstance(piece, str) and name != "role":
                self._texts[name] = self._texts.get(name, "") + piece
        for call in delta.get("tool_calls") or ():
            if isinstance(call, dict):
                _add_call(self._calls, call)

    def choice(self) -> TextChoice:
        calls = [self._calls[index] for index in sorted(self._calls)]
        texts = dict(self._texts)
        thought = texts.pop("reasoning_content", "") or texts.pop("reasoning", "")
        message = make_message(texts.pop("content", ""), thought, calls)
        return TextChoice({**texts, **message}, _reason(self._reason))


def _add_call(calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    call = calls.setdefault(
        delta.get("index") or 0,
        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
    )
    call["id"] = delta.get("id") or call["id"]
    for key, piece in (delta.get("function") or {}).items():
        if isinstance(piece, str):
            call["function"][key] = call["function"].get(key, "") + piece


def _join_message(events: Iterable[Mapping[str, Any]]) -> TextReply | None:
    """The message of Anthropic's events, which have blocks by index and usage in two parts."""
    reply_id, reason = "", None
    usage: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                reply_id = event["message"].get("id", "")
                usage |= event["message"].get("usage") or {}
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                _add_to_block(blocks.setdefault(event["index"], {"type": "text"}), event["delta"])
            case "message_delta":
                reason = event["delta"].get("stop_reason") or reason
                usage |= event.get("usage") or {}
            case _:
                pass
    message = message_of_blocks([blocks[index] for index in sorted(blocks)])
    return TextReply(reply_id, (TextChoice(message, _reason(reason)),), usage) if reply_id else None


def _add_to_block(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = (block.get(name) or "") + delta[name]
    if isinstance(delta.get("partial_json"), str):
        so_far = block.get("input")
        block["input"] = (so_far if isinstance(so_far, str) else "") + delta["partial_json"]


def _join_response(events: Iterable[Mapping[str, Any]]) -> TextReply | None:
    """The last response object that a stream carries, with the items that have arrived since."""
    response: Mapping[str, Any] = {}
    items: dict[int, dict[str, Any]] = {}
    for event in events:
        kind, index = str(event.get("type")), event.get("output_index", 0)
        if isinstance(event.get("response"), dict):
            response = event["response"]
        elif kind in ("response.output_item.added", "response.output_item.done"):
            items[index] = dict(event["item"])
        elif kind.endswith(".delta") and isinstance(event.get("delta"), str):
            _add_to_item(items.setdefault(index, {}), kind, event["delta"])
    if not response.get("id"):
        return None
    output = response.get("output") or [items[index] for index in sorted(items)]
    return _whole({**response, "output": output})


_ARGUMENTS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def _add_to_item(item: dict[str, Any], kind: str, piece: str) -> None:
    if (name := _ARGUMENTS.get(kind)) is not None:
        item[name] = (item.get(name) or "") + piece
    elif kind.startswith(("response.output_text", "response.refusal", "response.reasoning")):
        content = [*(item.get("content") or ()), {"text": piece}]
        item["content"] = content
