"""Traits of a chat template: which form of message it expects, found out by rendering probes.

Templates disagree on small things: arguments as an object or as text, an empty content or none,
a developer role or not, tools or not. Each is probed once, when the model is loaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.untrusted import loads
from areal_sdk.types import Message, Tool

PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_argument": {"type": "string"}},
            "required": ["probe_argument"],
        },
    },
}

PROBE_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "probecall",  # nine letters: Mistral's templates insist
            "type": "function",
            "function": {"name": "probe_tool", "arguments": '{"probe_argument": "probe_value"}'},
        }
    ],
}

PROBE_RESULT: Message = {"role": "tool", "tool_call_id": "probecall", "content": "probe_result"}


Defuse = Callable[[str, bool], str]
"""Disarms the special tokens of a text, given whether the policy could have written the text itself."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """The form in which one template takes messages."""

    arguments_as_text: bool = False
    empty_content: str | None = ""
    """The content of a message that is only tool calls."""
    knows_developer: bool = False
    writes_calls: bool = False
    """Whether the template renders `tool_calls` and tool results by itself."""
    describes_tools: bool = False
    """Whether the template tells the model which tools there are."""

    @classmethod
    def of(cls, template: ChatTemplate) -> "TemplateTraits":
        knows_developer = "developer" in template.source
        describes_tools = _describes_tools(template)
        for as_text in (False, True):
            for empty in ("", None):
                traits = cls(as_text, empty, knows_developer, True, describes_tools)
                if _writes_calls(template, traits):
                    return traits
        return cls(knows_developer=knows_developer)

    def write(self, message: Message, defuse: Defuse) -> dict[str, Any]:
        """`message` in the form that the template takes."""
        role = message.get("role", "user")
        if role == "developer" and not self.knows_developer:
            role = "system"
        ours = role == "assistant"
        content = message.get("content")
        written: dict[str, Any] = {"role": role, "content": defuse(content or "", ours)}
        if message.get("tool_calls"):
            written["tool_calls"] = [self._write_call(c, defuse) for c in message["tool_calls"]]
            written["content"] = written["content"] or self.empty_content
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reasoning and ours:
            written["reasoning_content"] = defuse(reasoning, True)
        for name in ("name", "tool_call_id"):
            if message.get(name) is not None:
                written[name] = defuse(str(message[name]), False)
        return written

    def _write_call(self, call: Mapping[str, Any], defuse: Defuse) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments: Any = _as_text(function.get("arguments"))
        if not self.arguments_as_text:
            arguments = _as_object(arguments)
        arguments = disarmed(arguments, defuse, ours=True)
        return {
            "id": disarmed(call.get("id"), defuse, ours=False),
            "type": "function",
            "function": {"name": defuse(str(function.get("name")), True), "arguments": arguments},
        }


def disarmed(value: Any, defuse: Defuse, *, ours: bool) -> Any:
    """A JSON value with the special tokens in its texts and keys disarmed.

    It searches the value and not its JSON text, where a token that is written with `\\u003c` in place of `<` would be
    missed.
    """
    if isinstance(value, str):
        return defuse(value, ours)
    if isinstance(value, Mapping):
        return {
            disarmed(key, defuse, ours=ours): disarmed(item, defuse, ours=ours)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [disarmed(item, defuse, ours=ours) for item in value]
    return value


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()


def _as_object(arguments: str) -> Any:
    """The parsed arguments. Text that is not JSON stays text."""
    try:
        return loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _writes_calls(template: ChatTemplate, traits: TemplateTraits) -> bool:
    messages = [{"role": "user", "content": "probe"}, PROBE_CALL, PROBE_RESULT]
    try:
        text = template.render([traits.write(m, as_it_is) for m in messages], tools=[PROBE_TOOL])
    except TemplateRefusalError:
        return False
    return all(word in text for word in ("probe_tool", "probe_value", "probe_result"))


def _describes_tools(template: ChatTemplate) -> bool:
    try:
        text = template.render([{"role": "user", "content": "probe"}], tools=[PROBE_TOOL])
    except TemplateRefusalError:
        return False
    return "probe_description" in text


def as_it_is(text: str, ours: bool) -> str:
    return text
