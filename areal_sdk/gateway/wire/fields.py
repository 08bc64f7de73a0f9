"""Typed reading of a request body: every field is honoured, accepted knowingly, or refused by name.

Request options that several OpenAI-shaped endpoints share, and the numbers they report.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from areal_sdk.engine import SAMPLING_BOUNDS
from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.sampling.reader import Completed, SampledTokens
from areal_sdk.gateway.sampling.request import ToolChoice, ToolUse
from areal_sdk.gateway.sessions.canonical import check_text
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.types import FinishReason, Tool

_T = TypeVar("_T")

LARGEST_INTEGER = 2**63 - 1
"""Largest integer that is accepted. A larger one, such as 1e308, fits no reply and no engine."""


class Fields:
    """A JSON object being read. `refuse_unknown` names the fields that nobody read. If it is lenient, it leaves out
    fields that it would refuse, with a notice."""

    def __init__(self, body: Any, *, lenient: bool = False) -> None:
        if not isinstance(body, dict):
            raise bad_request("the request body must be a JSON object")
        self.metadata: dict[str, Any] = {}
        """The fields that the client sent and that change nothing here, by name."""
        self.notices: list[str] = []
        """Notes for the client about the fields that were left out."""
        self._body: Mapping[str, Any] = body
        self._known: set[str] = set()
        self._lenient = lenient

    def get(self, name: str) -> Any:
        """The value, or None if the field is missing or null."""
        self._known.add(name)
        return self._body.get(name)

    def holds_any(self, names: Collection[str]) -> bool:
        """Whether any of these fields was sent. Most requests send few of the fields that they may."""
        self._known.update(names)
        return not self._body.keys().isdisjoint(names)

    def accept(self, *names: str) -> None:
        """Accept fields that mean something to another provider and change nothing here. They become metadata."""
        if not self.holds_any(names):
            return
        given = {name: self._body.get(name) for name in names}
        self.metadata.update((name, value) for name, value in given.items() if value is not None)

    def accept_with_notice(self, *names: str) -> None:
        """Accept fields of another provider's services with a notice, since they do not change the policy's answer."""
        if not self.holds_any(names):
            return
        self.accept(*names)
        given = (name for name in names if self._body.get(name) is not None)
        self.notices += (f"{name} has no effect here" for name in given)

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def mapping(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "an object")

    def items(self, name: str) -> list[Any] | None:
        return self._typed(name, list, "a list")

    def integer(self, name: str, *, least: int, most: int = LARGEST_INTEGER) -> int | None:
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, "an integer", value)
        _check_range(name, value, least, None if most == LARGEST_INTEGER >= value else most)
        return value

    def number(self, name: str, *, least: float, most: float | None = None) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(name, "a number", value)
        _check_range(name, value, least, most)
        return float(value)

    def choice(self, name: str, known: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise bad_request(
                f"{name} is {value!r}; known values: {', '.join(sorted(known))}", param=name
            )
        return value

    def refuse(self, name: str, why: str, *, unless: Collection[Any] = ()) -> None:
        """Refuse the field as `leave_out` does, if the client set it to a value that is not in `unless`."""
        value = self.get(name)
        if value is not None and value not in unless:
            self.leave_out(f"{name} is not supported: {why}", param=name)
            self.metadata[name] = value

    def leave_out(self, why: str, *, param: str, code: str | None = None) -> None:
        """Raise a 400 for a field that cannot be honoured. If the request is read leniently, add a notice instead."""
        if not self._lenient:
            raise bad_request(why, param=param, code=code)
        self.notices.append(f"left out: {why}")

    def refuse_unknown(self) -> None:
        for name in sorted(self._body.keys() - self._known):
            why = f"Unrecognized request argument supplied: {name}"
            self.leave_out(why, param=name, code="unknown_parameter")
            self.accept(name)

    def _typed(self, name: str, kind: type[_T], what: str) -> _T | None:
        self._known.add(name)
        value = self._body.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise _wrong_type(name, what, value)


def require(value: Any, name: str) -> Any:
    """`value`, or a 400 that names the missing field."""
    if value is None:
        raise bad_request(
            f"Missing required parameter: {name!r}", param=name, code="missing_required_parameter"
        )
    return value


def strings(values: Iterable[Any], name: str) -> tuple[str, ...]:
    found = tuple(values)
    if not all(isinstance(value, str) for value in found):
        raise bad_request(f"{name} must hold strings", param=name)
    return found


def _wrong_type(name: str, what: str, value: Any) -> Exception:
    kind = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(
        type(value), "a number"
    )
    return bad_request(
        f"Invalid type for {name!r}: expected {what}, but got {kind} instead.",
        param=name,
        code="invalid_type",
    )


def _check_range(name: str, value: float, least: float, most: float | None) -> None:
    if not least <= value or (most is not None and not value <= most):
        expected = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
        raise bad_request(
            f"Invalid {name!r}: {value} is out of range, expected {expected}.",
            param=name,
            code="invalid_value",
        )


_LEAST_LOGPROB = -9999.0
"""Lowest logprob to report: JSON has no minus infinity."""
LARGEST_BIAS = 100.0
"""Largest bias, as at OpenAI: it forces or forbids a token."""
MOST_BIASES = 1024
"""Largest number of biases: each is added to the logits at every token."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Pattern of a tool's name. OpenAI's names have up to 64 characters; Anthropic's and MCP's up to 128, MCP's with
dots."""
MOST_STOPS = 64
LONGEST_STOP = 1024


_SAMPLING = {*SAMPLING_BOUNDS, "top_k", "logit_bias"}


def parse_sampling(fields: Fields) -> dict[str, Any]:
    """The fields of `Sampling` that the client set."""
    if not fields.holds_any(_SAMPLING):
        return {}
    given: dict[str, Any] = {
        name: fields.number(name, least=least, most=most)
        for name, (least, most) in SAMPLING_BOUNDS.items()
    }
    given["top_k"] = fields.integer("top_k", least=-1)
    given["logit_bias"] = _parse_logit_bias(fields.mapping("logit_bias"))
    if given["top_k"] == -1:
        given["top_k"] = 0  # vLLM's way to say "off"
    return {name: value for name, value in given.items() if value is not None}


def _parse_logit_bias(value: dict[str, Any] | None) -> dict[int, float] | None:
    if value is None:
        return None
    if len(value) > MOST_BIASES:
        raise _bad_bias(f"holds {len(value)} tokens; send up to {MOST_BIASES}")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if _TOKEN_ID.fullmatch(token) is None:
            raise _bad_bias(f"holds {token[:50]!r}, which is no token id")
        is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not is_number or not abs(bias) <= LARGEST_BIAS:
            raise _bad_bias(f"of token {token} must be a number from -100 to 100")
        if bias:
            biases[int(token)] = float(bias)
    return biases


def _bad_bias(why: str) -> Exception:
    return bad_request(f"logit_bias {why}", param="logit_bias", code="invalid_value")


def parse_stop(value: Any) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)):
        raise bad_request("stop must be a string or a list of strings", param="stop")
    return check_stops(stops, "stop")


def check_stops(values: Sequence[Any], name: str) -> tuple[str, ...]:
    """The stop strings without empty ones. Their number is bounded, since each is looked for in every piece of an
    answer."""
    stops = tuple(stop for stop in strings(values, name) if stop)
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise bad_request(
            f"{name} may hold up to {MOST_STOPS} strings of up to {LONGEST_STOP} characters",
            param=name,
            code="invalid_value",
        )
    return stops


def check_name(name: str, param: str) -> str:
    """A tool's name, which is part of the prompt and of the calls that are read."""
    if _TOOL_NAME.fullmatch(name) is None:
        raise bad_request(
            f"{param} is {name[:100]!r}; a name has 1 to 128 letters (a to z), digits and '_', '.' or '-'",
            param=param,
            code="invalid_value",
        )
    return name


def parse_tool(tool: Any, param: str) -> Tool:
    """A function as chat completions declare it, which is what templates know."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise bad_request(f"{param}.type must be 'function'", param=f"{param}.type")
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{param}.function.name is missing", param=f"{param}.function.name")
    check_name(function["name"], f"{param}.function.name")
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
    """A fingerprint of the newest weights that sampled a token of this answer."""
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


def token_logprobs(sampled: SampledTokens, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The logprobs of the tokens that a client sees: special tokens are no part of its text."""
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
