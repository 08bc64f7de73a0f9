"""Tools for chat templates that know none: definitions, calls and results as plain text.

The format is specified in docs/adr/0002-plain-tool-format.md.
"""

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_sdk.errors import MalformedCallError
from areal_sdk.tool_calls import Content, Event, ToolCall, ToolFormat, is_too_deep
from areal_sdk.types import Message, Tool

_TEMPLATE = Path(__file__).with_name("plain.jinja")
_OWN = "{#- The template of the model itself: -#}{{ '' }}"
"""The last line of `plain.jinja`. The text after it stays as it is, even if it begins with a newline."""


def with_plain_tools(source: str) -> str:
    """A chat template that first weaves tools into the messages, as `weave` does, and then does what `source` does."""
    text = _TEMPLATE.read_text(encoding="utf-8")
    if "developer" in source:
        text = text.replace("'system' if role == 'developer' else role", "role")
    return text + source


def without_plain_tools(source: str) -> str:
    """The source that `with_plain_tools` got. A template that it did not make stays as it is."""
    return source.partition(_OWN)[2] or source


def weave(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation in nothing but system, user and assistant messages."""
    parameters = {tool["function"]["name"]: _parameters(tool) for tool in tools}
    woven: list[Message] = []
    for is_result, run in itertools.groupby(messages, lambda m: m.get("role") == "tool"):
        if is_result:
            text = "\n".join(f"Result: {message.get('content') or ''}" for message in run)
            woven.append({"role": "user", "content": text})
        else:
            woven += (_write_calls(message, parameters) for message in run)
    return _with_definitions(woven, tools) if tools else woven


def _with_definitions(messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
    lines = ["Tools:", *map(_define, tools), "To call a tool, reply with just the call."]
    definitions = "\n".join(lines)
    if messages and messages[0].get("role") in ("system", "developer"):
        text = f"{messages[0].get('content') or ''}\n\n{definitions}"
        return [{**messages[0], "content": text}, *messages[1:]]
    return [{"role": "system", "content": definitions}, *messages]


def _define(tool: Tool) -> str:
    function = tool["function"]
    required = (function.get("parameters") or {}).get("required") or ()
    parameters = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_word(schema)}"
        for name, schema in _parameters(tool).items()
    )
    line = f"{function['name']}({parameters})"
    description = (function.get("description") or "").strip()
    return f"{line}: {description.splitlines()[0]}" if description else line


def _type_word(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "|".join(map(_json, schema["enum"]))
    word = schema.get("type", "any")
    return "|".join(map(str, word)) if isinstance(word, list) else str(word)


def _parameters(tool: Tool) -> Mapping[str, Any]:
    return (tool["function"].get("parameters") or {}).get("properties") or {}


def _write_calls(message: Message, parameters: Mapping[str, Mapping[str, Any]]) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    lines = [message["content"]] if message.get("content") else []
    lines += [_write_call(call["function"], parameters) for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}


def _write_call(function: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]) -> str:
    name, text = function["name"], function.get("arguments") or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (json.JSONDecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return f"{name}({text})"
    declared = parameters.get(name, {})
    if len(declared) == 1 and arguments.keys() == declared.keys():
        return f"{name}({_json(next(iter(arguments.values())))})"
    return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in arguments.items())})"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class PlainCalls:
    """Reads a completion line by line: a line that is exactly one call is a call."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.problems: list[str] = []
        self._parameters = {tool["function"]["name"]: list(_parameters(tool)) for tool in tools}
        names = "|".join(map(re.escape, self._parameters))
        self._call = re.compile(rf"\s*(?P<name>{names})\s*\((?P<arguments>.*)\)\s*", re.DOTALL)
        self._content = Content()
        self._held = ""
        self._is_text = False
        """Whether the line began as content, so that its rest is content too."""

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        for part in _split_lines(text):
            self._held += part
            whole = part.endswith("\n")
            if whole or self._is_text or not self._may_be_call():
                events += self._release(whole_line=whole)
        return events

    def finish(self) -> list[Event]:
        return self._release(whole_line=True) if self._held else []

    def _release(self, *, whole_line: bool) -> list[Event]:
        text, self._held = self._held, ""
        was_text, self._is_text = self._is_text, not whole_line
        if was_text or not whole_line:
            return self._content.say(text)
        call = self._read(text)
        if call is None:
            return self._content.say(text)
        self._content.call()
        return [call]

    def _may_be_call(self) -> bool:
        line = self._held.lstrip()
        return any(
            name.startswith(line)
            or (line.startswith(name) and line[len(name) :].lstrip()[:1] in ("", "("))
            for name in self._parameters
        )

    def _read(self, line: str) -> ToolCall | None:
        match = self._call.fullmatch(line)
        if match is None:
            return None
        name = match["name"]
        try:
            arguments = read_arguments(match["arguments"], self._parameters[name])
        except MalformedCallError as exc:
            self.problems.append(f"malformed tool call: {exc}")
            return None
        if is_too_deep(arguments):
            self.problems.append("malformed tool call: its arguments are nested too deep")
            return None
        return ToolCall(name, _json(arguments))


def _split_lines(text: str) -> Iterator[str]:
    """The parts that end with a line break, and the rest. No part is empty."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end + 1]
        start = end + 1
    if start < len(text):
        yield text[start:]


_NAMED = re.compile(r"\s*(?P<name>[^\W\d][\w-]*)\s*=(?!=)")


def _no_constant(word: str) -> None:
    raise MalformedCallError(f"{word} is not JSON")


_VALUE = json.JSONDecoder(parse_constant=_no_constant)
_WORDS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"(True|False|None)\b")
_SINGLE_QUOTED = re.compile(r"'(?:[^'\\\n]|\\.)*'")


def read_arguments(text: str, parameters: Sequence[str]) -> dict[str, Any]:
    """The arguments between the parentheses of a call, by parameter name.

    >>> read_arguments('"11+22"', ["expression"])
    {'expression': '11+22'}
    >>> read_arguments('"hi", limit=3', ["query", "limit"])
    {'query': 'hi', 'limit': 3}
    """
    arguments: dict[str, Any] = {}
    named = False
    position = _skip_space(text, 0)
    while position < len(text):
        match = _NAMED.match(text, position)
        if match:
            named, name, position = True, match["name"], match.end()
        elif named or len(arguments) >= len(parameters):
            raise MalformedCallError("too many values, or one without a name after one with")
        else:
            name = parameters[len(arguments)]
        if name in arguments:
            raise MalformedCallError(f"{name} is given twice")
        arguments[name], position = _read_value(text, _skip_space(text, position))
        position = _skip_space(text, position)
        if position < len(text):
            if text[position] != ",":
                raise MalformedCallError(f"expected a comma at {text[position : position + 10]!r}")
            position = _skip_space(text, position + 1)
    return arguments


def _read_value(text: str, position: int) -> tuple[Any, int]:
    if word := _WORD.match(text, position):
        return _WORDS[word[0]], word.end()
    if quoted := _SINGLE_QUOTED.match(text, position):
        try:
            return ast.literal_eval(quoted[0]), quoted.end()
        except (SyntaxError, ValueError) as exc:
            raise MalformedCallError(f"not a string: {quoted[0]}") from exc
    try:
        return _VALUE.raw_decode(text, position)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise MalformedCallError(f"not a value: {text[position : position + 20]!r}") from exc


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


PLAIN = ToolFormat(
    name="plain",
    parser=PlainCalls,
    opening=lambda name: f"{name}(" if name else "",
)
