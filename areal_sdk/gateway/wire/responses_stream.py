"""The events of a streamed response, in the order that clients rely on.

    created, in_progress,
    then for each item: output_item.added, its parts and deltas and their done events,
    output_item.done,
    then completed (or incomplete)

`sequence_number` rises by one with each.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.parsers import ReasoningDelta, TextDelta
from areal_sdk.gateway.reading import Call, Completed, Delta, Sampled
from areal_sdk.gateway.wire.items import (
    Item,
    call_item,
    reasoning_item,
    text_item,
    text_part,
)
from areal_sdk.gateway.wire.reply import event
from areal_sdk.gateway.wire.tools import Toolbox

_CALL_EVENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
"""By an item's type: the events that tell what is in its call, and its name there."""


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
            case Call():
                yield from self._close_item("completed")
                yield from self._whole_call(delta)
            case Sampled() | Completed():
                pass  # the one is told with the next text, the other by `closing_events`

    def closing_events(self, status: str) -> Iterator[bytes]:
        """End the last item; a response without any gets an empty message."""
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

    def _whole_call(self, call: Call) -> Iterator[bytes]:
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
    """Logprobs as events tell them; in items each token has its bytes too."""
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
