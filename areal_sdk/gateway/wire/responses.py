"""`/v1/responses`: the whole response object, stored or not, and its stream."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.reading import Completed, Delta, Prepared, Sampled
from areal_sdk.gateway.request import ChatRequest
from areal_sdk.gateway.session import Session
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.gateway.wire.items import Item, from_message, new_id
from areal_sdk.gateway.wire.options import token_logprobs
from areal_sdk.gateway.wire.responses_request import parse
from areal_sdk.gateway.wire.responses_store import ResponseStore, StoredResponse, with_ids
from areal_sdk.gateway.wire.responses_stream import ResponseStream
from areal_sdk.types import FinishReason


class ResponsesReply:
    """One response."""

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
        self.id = new_id("resp")
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
        """The events so far, when the response can be streamed again."""
        self._logprobs: list[dict[str, Any]] = []

    def begin(self, choices: Sequence[Prepared]) -> None:
        """The reply does not depend on the prompt."""

    def observe(self, choice: int, delta: Delta) -> None:
        if isinstance(delta, Sampled):
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
        if isinstance(delta, Sampled):
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
        for event in events:
            if self._call.background:
                self._sent.append(event)
            yield event

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
