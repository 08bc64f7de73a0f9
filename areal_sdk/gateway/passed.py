"""What another provider was asked and answered, as messages: for traces, not for training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from areal_sdk.gateway.bounded_json import loads
from areal_sdk.types import FinishReason, Message

_LENGTH = ("length", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Passed:
    """One answer of another provider."""

    id: str
    message: Message
    finish_reason: FinishReason = FinishReason.STOP


def read_question(body: Any) -> tuple[Message, ...]:
    """The messages of a request of any wire format; empty for what is none."""
    if not isinstance(body, dict):
        return ()
    asked = body.get("messages") or body.get("input") or body.get("prompt") or ()
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    items = [item for item in asked if isinstance(item, dict)] if isinstance(asked, list) else []
    system = body.get("system") or body.get("instructions")
    return ({"role": "system", "content": system}, *items) if system else tuple(items)


def read_answer(raw: bytes, *, is_stream: bool) -> Passed | None:
    """What a reply says, whole or as events; None for what cannot be read."""
    if is_stream:
        return _join(_events(raw))
    try:
        return _whole(loads(raw))
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError, IndexError):
        return None


def _whole(body: Mapping[str, Any]) -> Passed:
    """A reply as chat completions, completions, responses and messages write theirs."""
    if "choices" in body:
        choice = body["choices"][0]
        message = choice.get("message") or {"content": choice.get("text", "")}
        return Passed(
            body["id"], {"role": "assistant", **message}, _reason(choice.get("finish_reason"))
        )
    if "output" in body:
        parts = [p for item in body["output"] for p in item.get("content") or ()]
        incomplete = body.get("incomplete_details") or {}
        message = {"content": _text(parts), "output": body["output"]}
        return Passed(
            body["id"], {"role": "assistant", **message}, _reason(incomplete.get("reason"))
        )
    message = {"content": _text(body["content"]), "blocks": body["content"]}
    return Passed(body["id"], {"role": "assistant", **message}, _reason(body.get("stop_reason")))


def _text(parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(part.get("text") or "" for part in parts)


def _reason(name: str | None) -> FinishReason:
    return FinishReason.LENGTH if name in _LENGTH else FinishReason.STOP


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    for line in raw.splitlines():
        if line.startswith(b"data:"):
            try:
                data = loads(line[5:])
            except orjson.JSONDecodeError:
                continue  # `[DONE]`, or an event that was cut off
            if isinstance(data, dict):
                yield data


def _join(events: Iterable[dict[str, Any]]) -> Passed | None:
    """The reply that events add up to."""
    reply_id, reason = "", None
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = event.get("type")
        if kind == "response.completed":
            return _whole(event["response"])
        if kind == "message_start":
            reply_id = event["message"].get("id", "")
        elif kind == "content_block_delta":
            text.append(event["delta"].get("text") or "")
        elif kind == "message_delta":
            reason = event["delta"].get("stop_reason")
        for choice in event.get("choices") or ():
            reply_id = event.get("id", reply_id)
            delta = choice.get("delta") or {}
            if choice.get("index", 0) == 0:
                text.append(delta.get("content") or choice.get("text") or "")
                reason = choice.get("finish_reason") or reason
                for call in delta.get("tool_calls") or ():
                    _add_call(calls, call)
    if not reply_id:
        return None
    message: Message = {"role": "assistant", "content": "".join(text)}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return Passed(reply_id, message, _reason(reason))


def _add_call(calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    call = calls.setdefault(
        delta.get("index", 0),
        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
    )
    call["id"] = delta.get("id") or call["id"]
    for key, piece in (delta.get("function") or {}).items():
        if isinstance(piece, str):
            call["function"][key] = call["function"].get(key, "") + piece
