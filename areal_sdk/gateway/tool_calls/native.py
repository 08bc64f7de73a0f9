"""JSON in `<tool_call>` tags: Hermes, Qwen 2.5, Qwen 3 and many others.

Llama 3: a turn that is nothing but a JSON object (or several, `;` between them) is a call.

Mistral: `[TOOL_CALLS]` and a list of JSON calls, or (since 2025) a name and its arguments.

DeepSeek V3, R1 and V3.1: calls between `tool calls begin` and `tool calls end` tokens.

GLM 4.5 and later, and Qwen 3 Coder: the arguments one by one between tags, without quotes.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from areal_sdk.errors import MalformedCallError
from areal_sdk.gateway.untrusted import loads
from areal_sdk.tool_calls import Event, TaggedCalls, TextDelta, ToolCall, ToolFormat
from areal_sdk.types import Tool


def _parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls("<tool_call>", "</tool_call>", lambda body: [_as_call(_parse_json(body))])


def _opening(name: str | None) -> str:
    return "<tool_call>\n" + (f'{{"name": "{name}", "arguments": ' if name else "")


HERMES = ToolFormat(
    name="hermes",
    parser=_parser,
    shown=("<tool_call>", "</tool_call>"),
    opening=_opening,
    detect=("<tool_call>",),
)


_LLAMA_TAG = "<|python_tag|>"

_BETWEEN_CALLS = re.compile(r"(?<=\})\s*;?\s*(?=\{\s*\"(?:name|type)\")")


class WholeJson:
    """Holds back a turn that begins like a call; any other turn is text from its first character."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.problems: list[str] = []
        self._names = {tool["function"]["name"] for tool in tools}
        self._held = ""
        self._is_text = False

    def feed(self, text: str) -> list[Event]:
        self._held += text
        if not self._is_text:
            begun = self._held.lstrip()
            if (
                begun[:1] in ("", "{")
                or begun.startswith(_LLAMA_TAG)
                or _LLAMA_TAG.startswith(begun)
            ):
                return []
            self._is_text = True
        text, self._held = self._held, ""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._is_text or not held.strip():
            return [TextDelta(held)] if held else []
        try:
            return list(self._read(held.strip().removeprefix(_LLAMA_TAG)))
        except MalformedCallError as exc:
            self.problems.append(f"malformed tool call: {exc}")
            return [TextDelta(held)]

    def _read(self, text: str) -> list[ToolCall]:
        calls = [_as_call(_parse_json(part)) for part in _BETWEEN_CALLS.split(text.strip())]
        unknown = next((call.name for call in calls if call.name not in self._names), None)
        if unknown is not None:  # an answer that is JSON is not a call
            raise MalformedCallError(f"{unknown!r} is not one of the tools")
        return calls


LLAMA = ToolFormat(
    name="llama",
    parser=WholeJson,
    shown=(_LLAMA_TAG,),
    opening=lambda name: '{"name": "' + (f'{name}", "parameters": ' if name else ""),
    detect=('"parameters": ', _LLAMA_TAG),
)


_MISTRAL_TAG = "[TOOL_CALLS]"


def _mistral_decode(body: str) -> list[ToolCall]:
    calls = [
        call
        for part in body.split(_MISTRAL_TAG)
        if part.strip()
        for call in _mistral_decode_one(part)
    ]
    if not calls:
        raise MalformedCallError("nothing after [TOOL_CALLS]")
    return calls


def _mistral_decode_one(part: str) -> list[ToolCall]:
    part = part.strip()
    if part.startswith("["):
        values = _parse_json(part)
        return [_as_call(value) for value in values]
    head, brace, rest = part.partition("{")
    name = head.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
    if not name or not brace:
        raise MalformedCallError("neither a list of calls nor a name and its arguments")
    return [_as_call({"name": name, "arguments": _parse_json(brace + rest)})]


def _mistral_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_MISTRAL_TAG, "", _mistral_decode)


def _mistral_opening(name: str | None) -> str:
    return f"{_MISTRAL_TAG}[" + (f'{{"name": "{name}", "arguments": ' if name else "")


MISTRAL = ToolFormat(
    name="mistral",
    parser=_mistral_parser,
    shown=(_MISTRAL_TAG, "[ARGS]", "[CALL_ID]"),
    opening=_mistral_opening,
    detect=(_MISTRAL_TAG,),
    call_id_length=9,
)


_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
_BEGIN, _END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001

_FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*?)\n?```", re.DOTALL)
"""Pattern of a DeepSeek V3 or R1 call after `function` and the separator: name, and arguments in a code fence."""


def _deepseek_decode(body: str) -> list[ToolCall]:
    calls = [_deepseek_decode_one(part.partition(_END)[0]) for part in body.split(_BEGIN)[1:]]
    if not calls:
        raise MalformedCallError("no call between the tags")
    return calls


def _deepseek_decode_one(text: str) -> ToolCall:
    first, separator, second = text.partition(_SEP)
    if not separator:
        raise MalformedCallError("a call without a separator")
    if fenced := _FENCED.fullmatch(second.strip()):
        name, arguments = fenced["name"], fenced["arguments"]
    else:
        name, arguments = first, second
    return _as_call({"name": name.strip(), "arguments": _parse_json(arguments)})


def _deepseek_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_BEGIN_ALL, _END_ALL, _deepseek_decode)


def _deepseek_opening(name: str | None) -> str:
    return f"{_BEGIN_ALL}{_BEGIN}function{_SEP}" + (f"{name}\n```json\n" if name else "")


DEEPSEEK = ToolFormat(
    name="deepseek",
    parser=_deepseek_parser,
    shown=(_BEGIN_ALL, _END_ALL, _BEGIN, _END, _SEP),
    opening=_deepseek_opening,
    detect=(_BEGIN_ALL,),
)


_GLM_START, _GLM_END = "<tool_call>", "</tool_call>"

_GLM_NAME = re.compile(r"\s*(?P<name>[^\s<>{]+)\s*(?=<arg_key>|$)")
_GLM_ARGUMENT = re.compile(
    r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL
)

_CODER_NAME = re.compile(r"\s*<function=(?P<name>[^>\n]+)>")
_CODER_ARGUMENT = re.compile(
    r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL
)


def _glm_decode(
    name: re.Pattern[str], argument: re.Pattern[str], tools: Sequence[Tool], body: str
) -> list[ToolCall]:
    head = name.match(body)
    if head is None:
        raise MalformedCallError("no tool name before the arguments")
    types = _declared_types(tools, head["name"])
    arguments = {
        key: _unquoted(match["value"], types.get(key))
        for match in argument.finditer(body, head.end())
        for key in (match["key"].strip(),)
    }
    return [ToolCall.of(head["name"].strip(), arguments)]


def _glm_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_GLM_START, _GLM_END, partial(_glm_decode, _GLM_NAME, _GLM_ARGUMENT, tools))


def _coder_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(
        _GLM_START, _GLM_END, partial(_glm_decode, _CODER_NAME, _CODER_ARGUMENT, tools)
    )


GLM = ToolFormat(
    name="glm",
    parser=_glm_parser,
    shown=(_GLM_START, _GLM_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    opening=lambda name: _GLM_START + (f"{name}\n" if name else ""),
    detect=("<arg_key>",),
)

QWEN_CODER = ToolFormat(
    name="qwen_coder",
    parser=_coder_parser,
    shown=(_GLM_START, _GLM_END),
    opening=lambda name: f"{_GLM_START}\n<function=" + (f"{name}>\n" if name else ""),
    detect=("<function=",),
)


def _parse_json(text: str) -> Any:
    try:
        return loads(text)
    except orjson.JSONDecodeError as exc:
        raise MalformedCallError(f"not JSON: {exc}") from exc


def _as_call(value: Any) -> ToolCall:
    """`{"name": ..., "arguments" or "parameters": {...}}` as a call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCallError('not an object with a "name"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parse_json(arguments)
    if not isinstance(arguments, dict):
        raise MalformedCallError("the arguments are not an object")
    return ToolCall.of(value["name"], arguments)


def _declared_types(tools: Sequence[Tool], name: str) -> dict[str, object]:
    """The JSON type of each parameter that the tool of that name declares."""
    for tool in tools:
        if tool["function"]["name"] == name:
            properties = (tool["function"].get("parameters") or {}).get("properties") or {}
            return {key: _type_of(schema) for key, schema in properties.items()}
    return {}


def _type_of(schema: Any) -> object:
    return schema.get("type") if isinstance(schema, dict) else None


def _unquoted(text: str, declared: object) -> object:
    """A value written without quotes: text if the tool declares a string, else JSON if it can be parsed."""
    if declared == "string":
        return text
    try:
        return loads(text)
    except orjson.JSONDecodeError:
        return text
