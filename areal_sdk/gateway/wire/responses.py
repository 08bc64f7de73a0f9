"""`/v1/responses`: requests of items, and the whole response object, stored or not."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.reading import Completed, Delta, Prepared, Sampled
from areal_sdk.gateway.request import ChatRequest, ToolChoice, ToolUse
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import Fields, require, strings
from areal_sdk.gateway.wire.items import Item, from_message, new_id, to_messages
from areal_sdk.gateway.wire.options import (
    named_tool_choice,
    parse_response_format,
    parse_sampling,
    parse_tools,
    token_logprobs,
)
from areal_sdk.gateway.wire.responses_store import ResponseStore, StoredResponse, with_ids
from areal_sdk.gateway.wire.responses_stream import ResponseStream
from areal_sdk.types import FinishReason, Message, Tool

_ACCEPTED = (
    "model",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "stream_options",
    "max_tool_calls",
)

_LOGPROBS = "message.output_text.logprobs"

_INCLUDABLE = frozenset({_LOGPROBS, "reasoning.encrypted_content"})


class ResponsesReply:
    """One response."""

    def __init__(
        self, body: Any, *, model: str, tokenizer: Tokenizer, store: ResponseStore
    ) -> None:
        fields = Fields(body)
        self._store = store
        self._tokenizer = tokenizer
        self._input = _parse_input(require(fields.get("input"), "input"))
        self._instructions = fields.text("instructions")
        self._previous = fields.text("previous_response_id")
        self._tools = fields.items("tools") or []
        self._keeps = fields.flag("store", default=True)
        self.stream = fields.flag("stream")
        said = to_messages(self._input, store.item)
        if self._previous is not None:
            said = [*store.previous(self._previous).conversation, *said]
        self._conversation = tuple(said)
        text_format = _parse_text_format(fields)
        request = self._parse_request(fields, text_format)
        self.requests: Sequence[ChatRequest] = (request,)
        self._echo = self._parse_echo(fields, request, text_format)
        fields.accept(*_ACCEPTED)
        fields.refuse("background", "responses are answered at once", unless=(False,))
        fields.refuse("conversation", "use previous_response_id")
        fields.refuse("prompt", "prompt templates are not stored here")
        fields.refuse("truncation", "shorten the input yourself", unless=("disabled",))
        fields.refuse_unknown()
        self.id = new_id("resp")
        self._head = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
        }
        self._stream_writer = ResponseStream(self._object("in_progress", []))
        self._logprobs: list[dict[str, Any]] = []

    def _parse_request(self, fields: Fields, text_format: dict[str, Any]) -> ChatRequest:
        tools = parse_tools([_nested(tool, i) for i, tool in enumerate(self._tools)])
        include = strings(fields.items("include") or (), "include")
        if unknown := set(include) - _INCLUDABLE:
            raise bad_request(f"include {sorted(unknown)[0]!r} is not supported", param="include")
        top_logprobs = fields.integer("top_logprobs", least=0, most=20) or 0
        system: list[Message] = (
            [{"role": "system", "content": self._instructions}] if self._instructions else []
        )
        messages = (*system, *self._conversation)
        if not messages:
            raise bad_request("input is empty: send at least one item", param="input")
        return ChatRequest(
            messages=messages,
            tools=tools,
            tool_choice=_parse_tool_choice(fields.get("tool_choice"), tools),
            parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
            max_new_tokens=fields.integer("max_output_tokens", least=1),
            sampling=parse_sampling(fields),
            logprobs=_LOGPROBS in include or top_logprobs > 0,
            num_top_logprobs=top_logprobs,
            json_schema=parse_response_format(_chat_format(text_format)),
        )

    def _parse_echo(
        self, fields: Fields, request: ChatRequest, text_format: dict[str, Any]
    ) -> dict[str, Any]:
        """What the response object repeats of the request."""
        reasoning = fields.mapping("reasoning") or {}
        choice = fields.get("tool_choice")
        return {
            "background": False,
            "instructions": self._instructions,
            "max_output_tokens": request.max_new_tokens,
            "max_tool_calls": fields.get("max_tool_calls"),
            "metadata": fields.mapping("metadata") or {},
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": self._previous,
            "prompt_cache_key": fields.get("prompt_cache_key"),
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "safety_identifier": fields.get("safety_identifier"),
            "service_tier": "default",
            "store": self._keeps,
            "temperature": request.sampling.get("temperature", 1.0),
            "text": {"format": text_format, "verbosity": "medium"},
            "tool_choice": "auto" if choice is None else choice,
            "tools": [{"strict": False, **tool} for tool in self._tools],
            "top_logprobs": request.num_top_logprobs,
            "top_p": request.sampling.get("top_p", 1.0),
            "frequency_penalty": request.sampling.get("frequency_penalty", 0.0),
            "presence_penalty": request.sampling.get("presence_penalty", 0.0),
            "truncation": "disabled",
            "user": fields.get("user"),
        }

    def begin(self, choices: Sequence[Prepared]) -> None:
        """The reply does not depend on the prompt."""

    def observe(self, choice: int, delta: Delta) -> None:
        if isinstance(delta, Sampled):
            self._logprobs += token_logprobs(delta, self._tokenizer)

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]:
        (done,) = completed
        output = list(from_message(done.turn.message, status=_status(done)))
        for item in output:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = self._logprobs
        return self._finish(done, output)

    def events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if isinstance(delta, Sampled):
            self._stream_writer.note_logprobs(token_logprobs(delta, self._tokenizer))
            return iter(())
        return self._stream_writer.events(delta)

    def closing_events(self, completed: Sequence[Completed]) -> Iterator[bytes]:
        (done,) = completed
        status = _status(done)
        yield from self._stream_writer.closing_events(status)
        response = self._finish(done, self._stream_writer.output)
        yield self._stream_writer.last_event(response)

    def error_event(self, error: ApiError) -> bytes:
        return self._stream_writer.error_event(error)

    def _finish(self, done: Completed, output: list[Item]) -> dict[str, Any]:
        response = self._object(_status(done), output, done)
        if self._keeps:
            conversation = (*self._conversation, done.turn.message)
            items = with_ids(self._input)
            self._store.add(StoredResponse(response, items, conversation))
        return response

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
            **self._echo,
        }


def _status(done: Completed) -> str:
    return "incomplete" if done.turn.finish_reason is FinishReason.LENGTH else "completed"


def _usage(done: Completed) -> dict[str, Any]:
    num_input, num_output = len(done.turn.prompt_tokens), len(done.turn.output_tokens)
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": done.num_cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": done.num_reasoning},
        "total_tokens": num_input + num_output,
    }


def _parse_input(value: Any) -> list[Item]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise bad_request("input must be a string or a list of items", param="input")
    wrong = next((i for i, item in enumerate(value) if not isinstance(item, dict)), None)
    if wrong is not None:
        raise bad_request(f"input[{wrong}] must be an object", param=f"input[{wrong}]")
    return value


def _nested(tool: Any, index: int) -> Tool:
    """A flat tool definition as chat completions write it, which is what templates know."""
    where = f"tools[{index}]"
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else None
        raise bad_request(f"{where}: tools of type {kind!r} are not supported", param=where)
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _parse_tool_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    if value is None or (isinstance(value, str) and value in set(ToolUse)):
        if value == ToolUse.REQUIRED and not tools:
            raise bad_request("tool_choice 'required' needs tools", param="tool_choice")
        return ToolChoice(ToolUse(value or "auto"))
    if isinstance(value, dict) and value.get("type") == "function":
        return named_tool_choice(value.get("name"), tools)
    raise bad_request(
        "tool_choice must be auto, none, required or a function's name", param="tool_choice"
    )


def _parse_text_format(fields: Fields) -> dict[str, Any]:
    text = Fields(fields.mapping("text") or {})
    return text.mapping("format") or {"type": "text"}


def _chat_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """The flat format of this API as chat completions nest it."""
    if text_format.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": text_format}
    return text_format
