"""`/v1/responses`: the whole response object, stored or not, and its stream.

The events of a streamed response, in the order that clients rely on.

    created, in_progress,
    then for each item: output_item.added, its parts and deltas and their done events,
    output_item.done,
    then completed (or incomplete)

`sequence_number` rises by one with each event.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sampling.reader import (
    Completed,
    Delta,
    Prepared,
    SampledTokens,
    StreamedCall,
)
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import Fields, token_logprobs
from areal_sdk.gateway.wire.reply import event
from areal_sdk.gateway.wire.responses.items import (
    Item,
    ResponseStore,
    StoredResponse,
    call_item,
    from_message,
    reasoning_item,
    text_item,
    text_part,
    with_ids,
)
from areal_sdk.gateway.wire.responses.request import parse
from areal_sdk.gateway.wire.tools import Toolbox
from areal_sdk.tool_calls import ReasoningDelta, TextDelta
from areal_sdk.types import FinishReason


class ResponsesReply:
    """Writes the response to one request, whole or as a stream."""

    def __init__(
        self,
        fields: Fields,
        session: Session,
        *,
        model: str,
        tokenizer: Tokenizer,
        store: ResponseStore,
    ) -> None:
        self._call = parse(fields, store, session.raw_inputs)
        self.requests: Sequence[ChatRequest] = (self._call.request,)
        self.stream = self._call.stream
        self.id = session.new_reply_id("resp_", num_bytes=16)
        self._store = store
        self._tokenizer = tokenizer
        self._head = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
        }
        self._stream_writer = ResponseStream(self._object("in_progress", []), self._call.tools)
        self._sent: list[bytes] = []
        """The events so far, kept only for a response that can be streamed again."""
        self._logprobs: list[dict[str, Any]] = []

    def begin(self, choices: Sequence[Prepared]) -> None:
        """Do nothing: the reply does not depend on the prompt."""

    def observe(self, choice: int, delta: Delta) -> None:
        if isinstance(delta, SampledTokens):
            self._logprobs += token_logprobs(delta, self._tokenizer)

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]:
        (done,) = completed
        output = list(from_message(done.turn.message, self._call.tools, status=_status(done)))
        for item in output:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = self._logprobs
        response = self._object(_status(done), output, done)
        self._keep(response, done)
        return response

    def events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if isinstance(delta, SampledTokens):
            self._stream_writer.note_logprobs(token_logprobs(delta, self._tokenizer))
            return iter(())
        return self._noted(self._stream_writer.events(delta))

    def closing_events(self, completed: Sequence[Completed]) -> Iterator[bytes]:
        (done,) = completed
        status = _status(done)
        yield from self._noted(self._stream_writer.closing_events(status))
        response = self._object(status, self._stream_writer.output, done)
        yield from self._noted([self._stream_writer.last_event(response)])
        self._keep(response, done)

    def error_event(self, error: ApiError) -> bytes:
        return self._stream_writer.error_event(error)

    def _noted(self, events: Iterator[bytes] | Sequence[bytes]) -> Iterator[bytes]:
        for written in events:
            if self._call.background:
                self._sent.append(written)
            yield written

    def _keep(self, response: dict[str, Any], done: Completed) -> None:
        if self._call.keeps:
            conversation = (*self._call.conversation, done.turn.message)
            items = with_ids(self._call.input_items)
            self._store.add(StoredResponse(response, items, conversation, tuple(self._sent)))

    def _object(
        self, status: str, output: list[Item], done: Completed | None = None
    ) -> dict[str, Any]:
        cut = status == "incomplete"
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": _usage(done) if done else None,
            **self._call.echo,
        }


def _status(done: Completed) -> str:
    return "incomplete" if done.turn.finish_reason is FinishReason.LENGTH else "completed"


def _usage(done: Completed) -> dict[str, Any]:
    num_input, num_output = done.turn.num_prompt, len(done.turn.output_tokens)
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": done.num_cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": done.num_reasoning},
        "total_tokens": num_input + num_output,
    }


_CALL_EVENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
"""Kind of event that carries the content of a call, and the field of the event that holds it, by type of call."""


class ResponseStream:
    """Writes the events of one response."""

    def __init__(self, response: dict[str, Any], tools: Toolbox) -> None:
        self.output: list[Item] = []
        """The items that are done."""
        self._response = response
        self._tools = tools
        self._numbers = count()
        self._has_begun = False
        self._item: Item | None = None
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        self._num_logprobs_sent = 0

    def note_logprobs(self, logprobs: list[dict[str, Any]]) -> None:
        self._logprobs += logprobs

    def events(self, delta: Delta) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            yield self._event("response.created", response=self._response)
            yield self._event("response.in_progress", response=self._response)
        match delta:
            case TextDelta(text):
                yield from self._add_text("message", text)
            case ReasoningDelta(text):
                yield from self._add_text("reasoning", text)
            case StreamedCall():
                yield from self._close_item("completed")
                yield from self._whole_call(delta)
            case SampledTokens() | Completed():
                pass  # the one is told with the next text, the other by `closing_events`

    def closing_events(self, status: str) -> Iterator[bytes]:
        """End the last item. A response without any item gets an empty message."""
        if self._item is None and not self.output:
            yield from self._open("message")
        yield from self._close_item(status)

    def _close_item(self, status: str) -> Iterator[bytes]:
        if self._item is None:
            return
        is_text = self._item["type"] == "message"
        place = {"item_id": self._item["id"], "output_index": len(self.output), "content_index": 0}
        if is_text:
            part = {**text_part(self._text), "logprobs": self._logprobs}
            done = {"text": self._text, "logprobs": _without_bytes(self._logprobs)}
            yield self._event("response.output_text.done", **place, **done)
        else:
            part = {"type": "reasoning_text", "text": self._text}
            yield self._event("response.reasoning_text.done", **place, text=self._text)
        yield self._event("response.content_part.done", **place, part=part)
        item = {**self._item, "status": status, "content": [part]}
        yield self._event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self._item, self._text = None, ""

    def last_event(self, response: dict[str, Any]) -> bytes:
        return self._event(f"response.{response['status']}", response=response)

    def error_event(self, error: ApiError) -> bytes:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _open(self, kind: str) -> Iterator[bytes]:
        if kind == "message":
            self._item = text_item(None, status="in_progress")
            part: dict[str, Any] = text_part("")
        else:
            self._item = reasoning_item("", status="in_progress")
            part = {"type": "reasoning_text", "text": ""}
        index = len(self.output)
        yield self._event("response.output_item.added", output_index=index, item=self._item)
        place = {"item_id": self._item["id"], "output_index": index, "content_index": 0}
        yield self._event("response.content_part.added", **place, part=part)

    def _add_text(self, kind: str, text: str) -> Iterator[bytes]:
        if self._item is not None and self._item["type"] != kind:
            yield from self._close_item("completed")
        if self._item is None:
            yield from self._open(kind)
        assert self._item is not None, "_open sets it"
        self._text += text
        place = {"item_id": self._item["id"], "output_index": len(self.output), "content_index": 0}
        if kind == "reasoning":
            yield self._event("response.reasoning_text.delta", **place, delta=text)
            return
        new = _without_bytes(self._logprobs[self._num_logprobs_sent :])
        self._num_logprobs_sent = len(self._logprobs)
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=new)

    def _whole_call(self, call: StreamedCall) -> Iterator[bytes]:
        item = call_item(call.id, self._tools.shown(call.id, call.name, call.arguments))
        kind, name = _CALL_EVENTS[item["type"]]
        index = len(self.output)
        begun = {**item, name: "", **({"status": "in_progress"} if "status" in item else {})}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        place = {"item_id": item["id"], "output_index": index}
        yield self._event(f"{kind}.delta", **place, delta=item[name])
        named = {"name": item["name"]} if name == "arguments" else {}
        yield self._event(f"{kind}.done", **place, **named, **{name: item[name]})
        yield self._event("response.output_item.done", output_index=index, item=item)
        self.output.append(item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return event(data, name=kind)


def _without_bytes(logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Logprobs in the form of events, without the bytes of each token, which only items have."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]
            ],
        }
        for entry in logprobs
    ]
