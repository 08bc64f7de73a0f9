"""`/v1/chat/completions`: its requests, responses and stream, over the internal request and turn."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from areal_sdk.gateway.canonical import check_role
from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.parsers import ReasoningDelta, TextDelta
from areal_sdk.gateway.reading import Call, Completed, Delta, Sampled
from areal_sdk.gateway.request import ChatRequest, ToolChoice, ToolUse
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import Fields, require, strings
from areal_sdk.types import FinishReason, Message, Tool

_ACCEPTED = (
    "model",
    "user",
    "store",
    "metadata",
    "service_tier",
    "reasoning_effort",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "verbosity",
    "return_token_ids",
)
"""They change nothing about what a policy samples."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed request to this endpoint."""

    request: ChatRequest
    stream: bool
    include_usage: bool
    return_token_ids: bool


def parse(body: Any) -> ChatCall:
    fields = Fields(body)
    messages = require(fields.items("messages"), "messages")
    if not messages:
        raise bad_request("messages is empty: send at least one message", param="messages")
    stream = fields.flag("stream")
    stream_options = Fields(fields.mapping("stream_options") or {})
    logprobs = fields.flag("logprobs")
    top_logprobs = fields.integer("top_logprobs", least=0, most=20) or 0
    if top_logprobs and not logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
    tools = parse_tools(fields.items("tools"))
    request = ChatRequest(
        messages=tuple(_parse_message(message, i) for i, message in enumerate(messages)),
        tools=tools,
        tool_choice=_parse_tool_choice(fields.get("tool_choice"), tools),
        parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
        max_new_tokens=_max_tokens(fields),
        stop=parse_stop(fields.get("stop")),
        num_choices=fields.integer("n", least=1, most=128) or 1,
        seed=fields.integer("seed", least=-(2**63), most=2**63 - 1),
        sampling=parse_sampling(fields),
        logprobs=logprobs,
        num_top_logprobs=top_logprobs,
        json_schema=_parse_response_format(fields.mapping("response_format")),
        template_options=fields.mapping("chat_template_kwargs") or {},
    )
    fields.accept(*_ACCEPTED)
    fields.refuse("functions", "use tools")
    fields.refuse("function_call", "use tool_choice")
    fields.refuse("modalities", "only text is generated", unless=(["text"],))
    for name in ("audio", "prediction", "web_search_options"):
        fields.refuse(name, "the policy generates text and nothing else")
    fields.refuse_unknown()
    return ChatCall(
        request,
        stream,
        include_usage=stream_options.flag("include_usage"),
        return_token_ids=bool(body.get("return_token_ids")),
    )


def _max_tokens(fields: Fields) -> int | None:
    newer = fields.integer("max_completion_tokens", least=1)
    older = fields.integer("max_tokens", least=1)
    return newer if newer is not None else older


def parse_sampling(fields: Fields) -> dict[str, Any]:
    """The sampling parameters that the client set, under our names."""
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", least=0.0, most=2.0),
        "top_p": fields.number("top_p", least=0.0, most=1.0),
        "top_k": fields.integer("top_k", least=-1),
        "min_p": fields.number("min_p", least=0.0, most=1.0),
        "presence_penalty": fields.number("presence_penalty", least=-2.0, most=2.0),
        "frequency_penalty": fields.number("frequency_penalty", least=-2.0, most=2.0),
        "repetition_penalty": fields.number("repetition_penalty", least=0.0),
        "logit_bias": _parse_logit_bias(fields.mapping("logit_bias")),
    }
    if given["top_k"] == -1:
        given["top_k"] = 0  # vLLM's way to say "off"
    return {name: value for name, value in given.items() if value is not None}


def _parse_logit_bias(value: dict[str, Any] | None) -> dict[int, float] | None:
    if value is None:
        return None
    try:
        return {int(token): float(bias) for token, bias in value.items()}
    except (TypeError, ValueError):
        raise bad_request("logit_bias must map token ids to numbers", param="logit_bias") from None


def parse_stop(value: Any) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)):
        raise bad_request("stop must be a string or a list of strings", param="stop")
    return tuple(stop for stop in strings(stops, "stop") if stop)


def parse_tools(values: list[Any] | None) -> tuple[Tool, ...]:
    return tuple(_parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(values or ()))


def _parse_tool(tool: Any, param: str) -> Tool:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise bad_request(f"{param}.type must be 'function'", param=f"{param}.type")
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{param}.function.name is missing", param=f"{param}.function.name")
    if not function["name"]:
        raise bad_request(f"{param}.function.name is empty", param=f"{param}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad_request(f"{param}.function.parameters must be an object", param=param)
    properties = (parameters or {}).get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise bad_request(f"{param}.function.parameters.properties must be an object", param=param)
    return tool


def _parse_tool_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in set(ToolUse):
            raise bad_request(
                f"tool_choice is {value!r}; known values: auto, none, required", param="tool_choice"
            )
        if value == ToolUse.REQUIRED and not tools:
            raise bad_request("tool_choice 'required' needs tools", param="tool_choice")
        return ToolChoice(ToolUse(value))
    name = (value.get("function") or {}).get("name") if isinstance(value, dict) else None
    return named_tool_choice(name, tools)


def named_tool_choice(name: Any, tools: Sequence[Tool]) -> ToolChoice:
    if name not in [tool["function"]["name"] for tool in tools]:
        raise bad_request(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return ToolChoice(ToolUse.REQUIRED, name)


def _parse_response_format(value: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = (value or {}).get("type", "text")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        schema = (value.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise bad_request(
                "response_format.json_schema.schema is missing", param="response_format"
            )
        return schema
    raise bad_request(f"response_format.type {kind!r} is not known", param="response_format.type")


def _parse_message(value: Any, index: int) -> Message:
    message = check_role(value, index)
    calls = message.get("tool_calls")
    if not calls:
        return message
    param = f"messages[{index}].tool_calls"
    if not isinstance(calls, list):
        raise bad_request(f"{param} must be a list", param=param)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_request(f"{param} must hold objects with a function name", param=param)
        if not isinstance(function.get("arguments") or "", (str, dict)):
            raise bad_request(f"{param}: arguments must be a string of JSON", param=param)
    return message


class ChatWriter:
    """Writes one response, whole or as a stream of chunks."""

    def __init__(self, call: ChatCall, *, model: str, tokenizer: Tokenizer) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self._logprobs: dict[int, list[dict[str, Any]]] = {}

    def observe(self, choice: int, delta: Delta) -> None:
        """Keep what a whole response needs besides the finished turn."""
        if isinstance(delta, Sampled):
            self._logprobs.setdefault(choice, []).extend(self._token_logprobs(delta))

    def response(self, completed: Sequence[Completed]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(i, done) for i, done in enumerate(completed)],
            "usage": usage(completed),
            "service_tier": "default",
            "system_fingerprint": None,
        }

    def _choice(self, index: int, done: Completed) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"refusal": None, **done.turn.message},
            "logprobs": None,
            "finish_reason": finish_reason(done),
        }
        if self._call.request.logprobs:
            choice["logprobs"] = {"content": self._logprobs.get(index, []), "refusal": None}
        if self._call.return_token_ids:
            choice["token_ids"] = done.turn.output_tokens
        return choice

    def opening_chunk(self, choice: int) -> bytes:
        return self._chunk(choice, {"role": "assistant", "content": "", "refusal": None})

    def chunk(self, choice: int, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                return self._chunk(choice, {"content": text})
            case ReasoningDelta(text):
                return self._chunk(choice, {"reasoning_content": text})
            case Call(id, index, name, arguments):
                function = {"name": name, "arguments": arguments}
                call = {"index": index, "id": id, "type": "function", "function": function}
                return self._chunk(choice, {"tool_calls": [call]})
            case Sampled():
                content = self._token_logprobs(delta)
                return self._chunk(choice, {}, logprobs={"content": content, "refusal": None})
            case Completed():
                return self._chunk(choice, {}, finish=finish_reason(delta))

    def closing_chunks(self, completed: Sequence[Completed]) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._call.include_usage:
            return done
        last = {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage(completed),
        }
        return b"data: " + orjson.dumps(last) + b"\n\n" + done

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> bytes:
        event = {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [
                {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            ],
        }
        if self._call.include_usage:
            event["usage"] = None
        return b"data: " + orjson.dumps(event) + b"\n\n"

    def _token_logprobs(self, sampled: Sampled) -> list[dict[str, Any]]:
        hidden = self._tokenizer.special_ids
        return [
            {
                **self._token(token, logprob),
                "top_logprobs": [self._token(t, lp) for t, lp in top.items()],
            }
            for token, logprob, top in zip(
                sampled.tokens, sampled.logprobs, sampled.top_logprobs, strict=True
            )
            if token not in hidden
        ]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.bytes_of(token)
        return {
            "token": raw.decode(errors="replace"),
            "logprob": max(logprob, -9999.0),
            "bytes": list(raw),
        }


def finish_reason(done: Completed) -> str:
    if done.turn.finish_reason is FinishReason.LENGTH and not done.turn.message.get("tool_calls"):
        return "length"
    return "tool_calls" if done.turn.message.get("tool_calls") else "stop"


def usage(completed: Sequence[Completed]) -> dict[str, Any]:
    num_prompt = len(completed[0].turn.prompt_tokens)
    num_sampled = sum(len(done.turn.output_tokens) for done in completed)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
        "prompt_tokens_details": {"cached_tokens": completed[0].num_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(done.num_reasoning for done in completed),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
