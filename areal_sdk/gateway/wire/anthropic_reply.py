"""`/v1/messages`: Anthropic's requests, message and stream."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sampling.reader import Completed, Delta, Prepared, StreamedCall
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.wire.anthropic_request import parse
from areal_sdk.gateway.wire.fields import Fields, require
from areal_sdk.gateway.wire.reply import event
from areal_sdk.tool_calls import ReasoningDelta, TextDelta
from areal_sdk.types import FinishReason


class MessagesReply:
    """Writes one message, whole or as a stream of events."""

    def __init__(self, fields: Fields, session: Session, *, model: str) -> None:
        require(fields.text("model"), "model")
        limit = require(fields.integer("max_tokens", least=1), "max_tokens")
        self.stream = fields.flag("stream")
        self._shows_thinking = (fields.mapping("thinking") or {}).get("type") in _THINKS
        self.requests: Sequence[ChatRequest] = (parse(fields, max_new_tokens=limit),)
        self.id = session.new_reply_id("msg_")
        self._head = {"id": self.id, "type": "message", "role": "assistant", "model": model}
        self._num_input = 0
        self._num_blocks = 0
        self._open: str | None = None
        self._has_begun = False

    def begin(self, choices: Sequence[Prepared]) -> None:
        self._num_input = len(choices[0].prompt.tokens)

    def observe(self, choice: int, delta: Delta) -> None:
        """Do nothing: the message is written from the finished turn alone."""

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]:
        (done,) = completed
        message = done.turn.message
        content: list[dict[str, Any]] = []
        if self._shows_thinking and message.get("reasoning_content"):
            content.append(_thinking_block(message["reasoning_content"]))
        text = (message.get("content") or "")[done.num_prefilled :]
        if text:
            content.append(_text_block(text))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = orjson.loads(function["arguments"])
            content.append(_tool_use_block(call["id"], function["name"], arguments))
        return {
            **self._head,
            "content": content,
            **_stop(done),
            "stop_details": None,
            "container": None,
            "usage": self._usage(done),
        }

    def events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            yield self._message_start()
            yield event({"type": "ping"}, name="ping")
        match delta:
            case TextDelta(text):
                yield from self._start_block("text", _text_block(""))
                yield self._block_delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text) if self._shows_thinking:
                yield from self._start_block("thinking", _thinking_block(""))
                yield self._block_delta({"type": "thinking_delta", "thinking": text})
            case StreamedCall():
                yield from self._stop_block()
                block = _tool_use_block(delta.id, delta.name, {})
                yield from self._start_block("tool_use", block)
                yield self._block_delta(
                    {"type": "input_json_delta", "partial_json": delta.arguments}
                )
                yield from self._stop_block()
            case _:
                pass

    def closing_events(self, completed: Sequence[Completed]) -> Iterator[bytes]:
        (done,) = completed
        yield from self._stop_block()
        usage = self._usage(done)
        change = {**_stop(done), "stop_details": None, "container": None}
        cumulative = {name: usage[name] for name in _CUMULATIVE}
        last = {"type": "message_delta", "delta": change, "usage": cumulative}
        yield event(last, name="message_delta")
        yield event({"type": "message_stop"}, name="message_stop")

    def error_event(self, error: ApiError) -> bytes:
        return event(error.anthropic_body(), name="error")

    def _message_start(self) -> bytes:
        usage = {**_no_usage(), "input_tokens": self._num_input}
        unfinished: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }
        message = {**self._head, **unfinished}
        return event({"type": "message_start", "message": message}, name="message_start")

    def _start_block(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Open a block of this kind, unless it is open."""
        if self._open == kind:
            return
        yield from self._stop_block()
        self._open = kind
        start = {"type": "content_block_start", "index": self._num_blocks, "content_block": block}
        yield event(start, name="content_block_start")

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        data = {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}
        return event(data, name="content_block_delta")

    def _stop_block(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._block_delta({"type": "signature_delta", "signature": _SIGNATURE})
        stop = {"type": "content_block_stop", "index": self._num_blocks}
        yield event(stop, name="content_block_stop")
        self._open = None
        self._num_blocks += 1

    def _usage(self, done: Completed) -> dict[str, Any]:
        num_fresh = done.turn.num_prompt - done.num_cached
        return {
            **_no_usage(),
            "input_tokens": num_fresh,
            "cache_read_input_tokens": done.num_cached,
            "output_tokens": len(done.turn.output_tokens),
            "output_tokens_details": {"thinking_tokens": done.num_reasoning},
        }


_CUMULATIVE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
"""The fields of the usage at the end of a stream."""

_THINKS = ("enabled", "adaptive")

_SIGNATURE = "local"
"""Signature of every thought. Clients send it back, and nothing here needs to check it."""


def _text_block(text: str) -> dict[str, Any]:
    """A block of text. Its `citations` are an empty list: the schema wants them, and Vercel's client refuses a null."""
    return {"type": "text", "text": text, "citations": []}


def _thinking_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": _SIGNATURE if text else ""}


def _tool_use_block(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    caller = {"type": "direct"}  # the model itself, not a program that it wrote
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments, "caller": caller}


def _stop(done: Completed) -> dict[str, Any]:
    matched = done.stop_matched
    if done.turn.message.get("tool_calls"):
        reason = "tool_use"
    elif done.turn.finish_reason is FinishReason.LENGTH:
        reason = "max_tokens"
    else:
        reason = "stop_sequence" if isinstance(matched, str) else "end_turn"
    return {"stop_reason": reason, "stop_sequence": matched if reason == "stop_sequence" else None}


def _no_usage() -> dict[str, Any]:
    return {
        "input_tokens": 0,
        "cache_creation": None,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "inference_geo": None,
        "output_tokens": 0,
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }
