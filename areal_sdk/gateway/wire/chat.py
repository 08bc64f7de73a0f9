"""`/v1/chat/completions`: its requests, responses and stream, over the internal request and turn."""

import json
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.sampling.reader import (
    Completed,
    Delta,
    Prepared,
    SampledTokens,
    StreamedCall,
)
from areal_sdk.gateway.sampling.request import ChatRequest, ToolChoice, ToolUse
from areal_sdk.gateway.sessions.canonical import check_message, check_text
from areal_sdk.gateway.sessions.history import num_equal
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import (
    Fields,
    fingerprint,
    finish_reason,
    parse_response_format,
    parse_sampling,
    parse_stop,
    require,
    token_logprobs,
    usage,
)
from areal_sdk.gateway.wire.reply import event
from areal_sdk.gateway.wire.tools import (
    Toolbox,
    chat_tools,
    custom_arguments,
    has_function_calls,
    older_functions,
    without_function_calls,
)
from areal_sdk.tool_calls import ReasoningDelta, TextDelta
from areal_sdk.types import Message

_ACCEPTED = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "reasoning_effort",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "prompt_cache_options",
    "verbosity",
)
"""Fields that change nothing about what a policy samples."""

_WITHOUT_EFFECT = ("prediction", "moderation", "web_search_options", "audio")
"""Services of another provider. The answer is the policy's all the same, so a notice is enough."""


_MARK = "\ufdd3"
"""Stands for a choice; a noncharacter, which no model's name holds."""


def parse(
    fields: Fields,
    *,
    known: Sequence[Message] = (),
    raw_inputs: MutableMapping[str, str] | None = None,
) -> "ChatCall":
    """The call that the body of a request asks for. Messages that are in `known` were parsed before: no second check.

    `raw_inputs` is the session's record of malformed arguments.
    """
    raw_inputs = {} if raw_inputs is None else raw_inputs
    require(fields.text("model"), "model")
    messages = require(fields.items("messages"), "messages")
    if not messages:
        raise bad_request("messages is empty: send at least one message", param="messages")
    stream = fields.flag("stream")
    stream_options = Fields(fields.mapping("stream_options") or {})
    logprobs = fields.flag("logprobs")
    top_logprobs = fields.integer("top_logprobs", least=0, most=20) or 0
    if top_logprobs and not logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
    tools, functions = chat_tools(fields), older_functions(fields)
    named = {tool.name for tool in tools}
    # A client between two releases sends the same function in both.
    offered = [*tools, *(one for one in functions if one.name not in named)]
    toolbox = Toolbox(offered, raw_inputs)
    calls_functions = bool(functions) and not tools
    older_choice = fields.get("function_call")
    if isinstance(older_choice, dict):
        older_choice = {"type": "function", "function": older_choice}
    choice = fields.get("tool_choice") or older_choice
    request = ChatRequest(
        messages=_parse_messages(messages, known, raw_inputs),
        tools=toolbox.tools,
        tool_choice=_parse_tool_choice(choice, toolbox),
        parallel_tool_calls=fields.flag("parallel_tool_calls", default=True)
        and not calls_functions,
        max_new_tokens=_max_tokens(fields),
        stop=parse_stop(fields.get("stop")),
        num_choices=fields.integer("n", least=1, most=128) or 1,
        seed=fields.integer("seed", least=-(2**63), most=2**63 - 1),
        sampling=parse_sampling(fields),
        logprobs=logprobs,
        num_top_logprobs=top_logprobs,
        json_schema=parse_response_format(fields.mapping("response_format")),
        template_options=fields.mapping("chat_template_kwargs") or {},
    )
    fields.accept(*_ACCEPTED)
    fields.accept_with_notice(*_WITHOUT_EFFECT)
    fields.refuse("modalities", "only text is generated", unless=(["text"],))
    return_token_ids = fields.flag("return_token_ids")
    fields.refuse_unknown()
    return ChatCall(
        request,
        stream,
        stream_options.flag("include_usage"),
        return_token_ids,
        toolbox,
        calls_functions=calls_functions,
    )


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed request to this endpoint."""

    request: ChatRequest
    stream: bool
    include_usage: bool
    return_token_ids: bool
    tools: Toolbox
    calls_functions: bool
    """Whether the tools came as `functions`, so that a call goes back as a `function_call`."""


def _max_tokens(fields: Fields) -> int | None:
    newer = fields.integer("max_completion_tokens", least=1)
    older = fields.integer("max_tokens", least=1)
    return newer if newer is not None else older


def _parse_tool_choice(value: Any, tools: Toolbox) -> ToolChoice:
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in set(ToolUse):
            raise bad_request(
                f"tool_choice is {value!r}; known values: auto, none, required", param="tool_choice"
            )
        if value == ToolUse.REQUIRED and not tools.tools:
            raise bad_request("tool_choice 'required' needs tools", param="tool_choice")
        return ToolChoice(ToolUse(value))
    kind = value.get("type", "function") if isinstance(value, dict) else None
    named = value.get(kind) if isinstance(kind, str) else None
    if not isinstance(named, dict):
        named = {}
    if kind == "allowed_tools":
        return tools.choice_among(named.get("mode"), named.get("tools"))
    return tools.choice(named.get("name"))


def _parse_messages(
    values: list[Any], known: Sequence[Message], raw_inputs: Mapping[str, str]
) -> tuple[Message, ...]:
    same = num_equal(values, known)
    if has_function_calls(values[same:]):  # what is known has none
        values = without_function_calls(values)
        same = num_equal(values, known)
    new = (
        parse_message(value, f"messages[{index}]", raw_inputs)
        for index, value in enumerate(values[same:], same)
    )
    return (*known[:same], *new)


def parse_message(value: Any, where: str, raw_inputs: Mapping[str, str]) -> Message:
    """A message with calls in one form; 400 that names `where`. `canonical` then reads the content."""
    message = check_message(value, where)
    calls = message.get("tool_calls")
    if not calls:
        return message
    param = f"{where}.tool_calls"
    if not isinstance(calls, list):
        raise bad_request(f"{param} must be a list", param=param)
    calls = [_function_of(call, raw_inputs) for call in calls]
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_request(f"{param} must hold objects with a function name", param=param)
        check_text(call.get("id"), f"{param}.id")
        if not isinstance(function.get("arguments") or "", (str, dict)):
            raise bad_request(f"{param}: arguments must be a string of JSON", param=param)
    calls = [*map(_as_text, calls)]
    return message if calls == message["tool_calls"] else message | {"tool_calls": calls}


def _function_of(call: Any, raw_inputs: Mapping[str, str]) -> Any:
    """A call of a custom tool as the call of the function that the policy knows. Any other call stays as it is."""
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict) or not isinstance(custom.get("input"), str):
        return call
    call_id = check_text(call.get("id"), "tool_calls.id")
    arguments = custom_arguments(custom["input"], call_id, raw_inputs)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": custom.get("name"), "arguments": arguments},
    }


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as a string, which is OpenAI's form. As Python objects, 1 and true would be
    equal."""
    if not isinstance(call["function"].get("arguments"), dict):
        return call
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}


class ChatReply:
    """Writes one response, whole or as a stream of chunks."""

    def __init__(
        self,
        fields: Fields,
        session: Session,
        *,
        known: Sequence[Message],
        model: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._call = parse(fields, known=known, raw_inputs=session.raw_inputs)
        self.requests: Sequence[ChatRequest] = (self._call.request,)
        self.stream = self._call.stream
        self._tokenizer = tokenizer
        self.id = session.new_reply_id("chatcmpl-")
        self._head = {
            "id": self.id,
            "created": int(time.time()),
            "model": model,
        }
        self._logprobs: dict[int, list[dict[str, Any]]] = {}
        self._opened: set[int] = set()
        self._shown_prompt: dict[str, Any] = {}
        """The token ids of the prompt, if the client asks for them."""
        if self.stream:
            self._before_choice, self._after_choice = self._around_choice()

    def begin(self, choices: Sequence[Prepared]) -> None:
        if self._call.return_token_ids:
            self._shown_prompt = {"prompt_token_ids": choices[0].prompt.tokens}

    def observe(self, choice: int, delta: Delta) -> None:
        if isinstance(delta, SampledTokens):
            self._logprobs.setdefault(choice, []).extend(token_logprobs(delta, self._tokenizer))

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(i, done) for i, done in enumerate(completed)],
            "usage": usage(completed),
            **_served_by(completed),
            **self._shown_prompt,
        }

    def _choice(self, index: int, done: Completed) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"refusal": None, "annotations": [], **self._message(done.turn.message)},
            "logprobs": None,
            "finish_reason": self._finish_reason(done),
        }
        if self._call.request.logprobs:
            choice["logprobs"] = {"content": self._logprobs.get(index, []), "refusal": None}
        if self._call.return_token_ids:
            choice["token_ids"] = done.turn.output_tokens
        return choice

    def _message(self, message: Message) -> Message:
        """The message of a turn, with its calls in the form in which the tools were declared."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        if self._call.calls_functions:
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            return {**rest, "function_call": calls[0]["function"]}
        return {**message, "tool_calls": [self._shown(c["id"], **c["function"]) for c in calls]}

    def _shown(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        shown = self._call.tools.shown(call_id, name, arguments)
        if shown.is_custom:
            custom = {"name": shown.name, "input": shown.text}
            return {"id": call_id, "type": "custom", "custom": custom}
        function = {"name": shown.name, "arguments": shown.text}
        return {"id": call_id, "type": "function", "function": function}

    def _finish_reason(self, done: Completed) -> str:
        reason = finish_reason(done)
        is_older = reason == "tool_calls" and self._call.calls_functions
        return "function_call" if is_older else reason

    def events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if choice not in self._opened:
            yield self._first_chunk(choice)
            self._opened.add(choice)
        match delta:
            case TextDelta(text):
                yield self._chunk(choice, {"content": text})
            case ReasoningDelta(text):
                yield self._chunk(choice, {"reasoning_content": text})
            case StreamedCall(id, index, name, arguments) if not self._call.calls_functions:
                call = {"index": index, **self._shown(id, name, arguments)}
                yield self._chunk(choice, {"tool_calls": [call]})
            case StreamedCall(_, _, name, arguments):
                function = {"name": name, "arguments": arguments}
                yield self._chunk(choice, {"function_call": function})
            case SampledTokens():
                content = token_logprobs(delta, self._tokenizer)
                yield self._chunk(choice, {}, logprobs={"content": content, "refusal": None})
            case Completed():
                yield self._last_chunk(choice, delta)

    def closing_events(self, completed: Sequence[Completed]) -> Iterator[bytes]:
        if self._call.include_usage:
            last = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield event({**last, "usage": usage(completed), **_served_by(completed)})
        yield b"data: [DONE]\n\n"

    def error_event(self, error: ApiError) -> bytes:
        return event(error.openai_body())

    def _first_chunk(self, index: int) -> bytes:
        """The chunk that names the role of a choice, and in the first choice the prompt's tokens."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        if self._opened or not self._shown_prompt:
            return self._chunk(index, delta)
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._event_of(choice, self._shown_prompt)

    def _last_chunk(self, index: int, done: Completed) -> bytes:
        """The chunk that says how a choice ended, and which weights sampled it."""
        choice = {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": self._finish_reason(done),
        }
        if self._call.return_token_ids:
            choice["token_ids"] = done.turn.output_tokens
        return self._event_of(choice, _served_by([done]))

    def _chunk(
        self, index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._before_choice + orjson.dumps(choice) + self._after_choice

    def _around_choice(self) -> tuple[bytes, bytes]:
        """The bytes before and after a chunk's choice: all but the last chunk have the same."""
        before, _, after = self._event_of(_MARK, {}).partition(orjson.dumps(_MARK))
        return before, after

    def _event_of(self, choice: Any, more: dict[str, Any]) -> bytes:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice], **more}
        if self._call.include_usage:
            chunk["usage"] = None
        return event(chunk)


def _served_by(completed: Sequence[Completed]) -> dict[str, Any]:
    return {"service_tier": "default", "system_fingerprint": fingerprint(completed)}
