"""Request options that several OpenAI-shaped endpoints share, and the numbers they report."""

from collections.abc import Sequence
from typing import Any

from areal_sdk.gateway.canonical import check_text
from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.reading import Completed, Sampled
from areal_sdk.gateway.request import ToolChoice, ToolUse
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.gateway.wire.fields import Fields, strings
from areal_sdk.types import FinishReason, Tool

_LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity."""
_LARGEST_BIAS = 100.0
"""As at OpenAI: it forces or forbids a token."""


def parse_sampling(fields: Fields) -> dict[str, Any]:
    """The sampling parameters that the client set, under our names."""
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", least=0.0, most=2.0),
        "top_p": fields.number("top_p", least=0.0, most=1.0),
        "top_k": fields.integer("top_k", least=-1),
        "min_p": fields.number("min_p", least=0.0, most=1.0),
        "presence_penalty": fields.number("presence_penalty", least=-2.0, most=2.0),
        "frequency_penalty": fields.number("frequency_penalty", least=-2.0, most=2.0),
        "repetition_penalty": fields.number("repetition_penalty", least=0.01, most=100.0),
        "logit_bias": _parse_logit_bias(fields.mapping("logit_bias")),
    }
    if given["top_k"] == -1:
        given["top_k"] = 0  # vLLM's way to say "off"
    return {name: value for name, value in given.items() if value is not None}


def _parse_logit_bias(value: dict[str, Any] | None) -> dict[int, float] | None:
    if value is None:
        return None
    try:
        biases = {int(token): float(bias) for token, bias in value.items() if bias}
    except (TypeError, ValueError):
        raise bad_request("logit_bias must map token ids to numbers", param="logit_bias") from None
    if not all(abs(bias) <= _LARGEST_BIAS for bias in biases.values()):
        raise bad_request(
            f"logit_bias must be between {-_LARGEST_BIAS:g} and {_LARGEST_BIAS:g}",
            param="logit_bias",
            code="invalid_value",
        )
    return biases


def parse_stop(value: Any) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)):
        raise bad_request("stop must be a string or a list of strings", param="stop")
    return tuple(stop for stop in strings(stops, "stop") if stop)


def parse_tools(values: list[Any] | None) -> tuple[Tool, ...]:
    return tuple(parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(values or ()))


def parse_tool(tool: Any, param: str) -> Tool:
    """A function as chat completions declare it, which is what templates know."""
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
    check_text(function.get("description"), f"{param}.function.description")
    required = (parameters or {}).get("required") or []
    if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
        raise bad_request(f"{param}.function.parameters.required must be names", param=param)
    properties = (parameters or {}).get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise bad_request(f"{param}.function.parameters.properties must be an object", param=param)
    return tool


def named_tool_choice(name: Any, tools: Sequence[Tool]) -> ToolChoice:
    if name not in [tool["function"]["name"] for tool in tools]:
        raise bad_request(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return ToolChoice(ToolUse.REQUIRED, name)


def parse_response_format(value: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = (value or {}).get("type", "text")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        described = value.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, dict):
            raise bad_request(
                "response_format.json_schema.schema is missing", param="response_format"
            )
        return schema
    raise bad_request(f"response_format.type {kind!r} is not known", param="response_format.type")


def finish_reason(done: Completed) -> str:
    if done.turn.finish_reason is FinishReason.LENGTH and not done.turn.message.get("tool_calls"):
        return "length"
    return "tool_calls" if done.turn.message.get("tool_calls") else "stop"


def fingerprint(completed: Sequence[Completed]) -> str:
    """What changes when answers may: the newest weights that sampled a token of this one."""
    return f"weights-{max((max(d.turn.versions, default=0) for d in completed), default=0)}"


def usage(completed: Sequence[Completed]) -> dict[str, Any]:
    num_prompt = completed[0].turn.num_prompt
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


def token_logprobs(sampled: Sampled, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """What a client sees of the tokens' logprobs; special tokens are not part of its text."""
    tokens = zip(sampled.tokens, sampled.logprobs, sampled.top_logprobs, strict=True)
    return [
        {
            **_token_logprob(token, logprob, tokenizer),
            "top_logprobs": [_token_logprob(t, lp, tokenizer) for t, lp in top.items()],
        }
        for token, logprob, top in tokens
        if token not in tokenizer.special_ids
    ]


def _token_logprob(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.bytes_of(token)
    return {
        "token": raw.decode(errors="replace"),
        "logprob": max(logprob, _LEAST_LOGPROB),
        "bytes": list(raw),
    }
