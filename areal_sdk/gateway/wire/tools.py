"""Tools as OpenAI's clients declare them, and calls of tools as these clients see them.

The policy knows only functions. It sees a custom tool, whose input is text, as a function of one text, and a tool in a
namespace under a name that begins with the namespace's name.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.sampling.request import ToolChoice, ToolUse
from areal_sdk.gateway.sessions.canonical import check_text
from areal_sdk.gateway.wire.fields import Fields, check_name, parse_tool
from areal_sdk.types import Tool

_INPUT = "input"
"""The one parameter of a custom tool."""

_HOSTED_AND_HARMLESS = ("web_search", "web_search_preview")
"""Tools that agents offer unasked. The policy is not told of them, so it does not call them."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One tool that a request offers."""

    tool: Tool
    """The definition that the policy is told."""
    name: str
    """The client's name for the tool."""
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call of a tool as the client sees it."""

    name: str
    text: str
    """The arguments, or a custom tool's input."""
    namespace: str | None
    is_custom: bool


class Toolbox:
    """The tools of one request."""

    def __init__(self, offered: Sequence[Offered], raw_inputs: MutableMapping[str, str]) -> None:
        """`raw_inputs` is the session's record of malformed arguments, by the id of the call. `shown` adds to it."""
        self.tools: tuple[Tool, ...] = tuple(one.tool for one in offered)
        self._raw_inputs = raw_inputs
        self._by_name: dict[str, Offered] = {}
        for one in offered:
            name = one.tool["function"]["name"]
            other = self._by_name.setdefault(name, one)
            if (other.name, other.is_custom) != (one.name, one.is_custom):
                raise bad_request(f"two tools are called {name!r} here: rename one", param="tools")

    def shown(self, call_id: str, name: str, arguments: str) -> ShownCall:
        """A sampled call in the form in which its tool was declared. A call of an unknown tool is shown as a
        function's."""
        offered = self._by_name.get(name)
        if offered is None:
            return ShownCall(name, arguments, None, is_custom=False)
        text = arguments
        if offered.is_custom:
            text = _input_of(arguments)
            if text is arguments:
                self._raw_inputs[call_id] = arguments
        return ShownCall(offered.name, text, offered.namespace, offered.is_custom)

    def choice(self, name: Any, namespace: Any = None) -> ToolChoice:
        """The choice that demands a call of this tool."""
        return ToolChoice(ToolUse.REQUIRED, self._known_as(name, namespace))

    def choice_among(self, mode: Any, chosen: Any) -> ToolChoice:
        """The choice that allows calls of some tools only (`allowed_tools`). The prompt names all tools, as at
        OpenAI."""
        if mode not in ("auto", "required") or not isinstance(chosen, list):
            raise bad_request(
                "allowed_tools needs a mode, auto or required, and a list of tools",
                param="tool_choice",
            )
        named = [_named(tool) for tool in chosen]
        names = frozenset(self._known_as(*name) for name in named if name is not None)
        if mode == "auto" or not names:
            return ToolChoice(allowed=names)
        return ToolChoice(ToolUse.REQUIRED, min(names) if len(names) == 1 else None, names)

    def _known_as(self, name: Any, namespace: Any) -> str:
        for known, one in self._by_name.items():
            if one.name == name and one.namespace == namespace:
                return known
        if namespace is None and isinstance(name, str) and name in self._by_name:
            return name
        raise bad_request(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")


def chat_tools(fields: Fields) -> list[Offered]:
    """The tools of a chat completion, each with its fields nested below its type."""
    offered = []
    for index, tool in enumerate(fields.items("tools") or ()):
        param = f"tools[{index}]"
        if isinstance(tool, dict) and tool.get("type") == "custom":
            custom = tool.get("custom")
            offered.append(_custom(custom if isinstance(custom, dict) else {}, f"{param}.custom"))
        else:
            parsed = parse_tool(tool, param)
            offered.append(Offered(parsed, parsed["function"]["name"]))
    return offered


def older_functions(fields: Fields) -> list[Offered]:
    """`functions`, which chat completions had before tools."""
    values = fields.items("functions") or ()
    parsed = [
        parse_tool({"type": "function", "function": value}, f"functions[{index}]")
        for index, value in enumerate(values)
    ]
    return [Offered(tool, tool["function"]["name"]) for tool in parsed]


def response_tools(fields: Fields) -> Iterator[Offered]:
    """The tools of a request to the responses API, which are flat, and may stand in namespaces."""
    for index, tool in enumerate(fields.items("tools") or ()):
        where = f"tools[{index}]"
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            inner = tool.get("tools")
            name = tool.get("name")
            if not isinstance(inner, list) or not isinstance(name, str):
                raise bad_request(f"{where} needs a name and tools", param=where)
            check_name(name, f"{where}.name")
            about = check_text(tool.get("description"), f"{where}.description")
            for number, one in enumerate(inner):
                yield from _flat(one, f"{where}.tools[{number}]", fields, (name, about or ""))
        else:
            yield from _flat(tool, where, fields)


def _flat(
    tool: Any, where: str, fields: Fields, namespace: tuple[str, str] | None = None
) -> Iterator[Offered]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom":
        yield _in_namespace(_custom(tool, where), namespace)
    elif kind == "function":
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        parsed = parse_tool({"type": "function", "function": function}, where)
        yield _in_namespace(Offered(parsed, parsed["function"]["name"]), namespace)
    elif kind in _HOSTED_AND_HARMLESS:
        fields.notices.append(f"the tool {kind} runs at its provider: the policy is not told of it")
    else:
        fields.leave_out(f"{where}: tools of type {kind!r} are not supported", param=where)


def _in_namespace(offered: Offered, namespace: tuple[str, str] | None) -> Offered:
    if namespace is None:
        return offered
    name, about = namespace
    function = offered.tool["function"]
    told = {**function, "name": name_in(name, offered.name)}
    if about:
        told["description"] = f"{about} {function.get('description') or ''}".strip()
    return Offered(
        {"type": "function", "function": told}, offered.name, name, is_custom=offered.is_custom
    )


def _custom(tool: Mapping[str, Any], where: str) -> Offered:
    """A tool that takes text. A grammar of the text is told to the model, but not enforced."""
    about = check_text(tool.get("description"), f"{where}.description") or ""
    form = tool.get("format") or {}
    grammar = form.get("grammar", form) if isinstance(form, dict) else {}
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        about += f"\n\nThe input follows this {grammar.get('syntax')} grammar:\n"
        about += grammar["definition"]
    function = {
        "name": tool.get("name"),
        "description": about.strip(),
        "parameters": {
            "type": "object",
            "properties": {_INPUT: {"type": "string"}},
            "required": [_INPUT],
        },
    }
    parsed = parse_tool({"type": "function", "function": function}, where)
    return Offered(parsed, parsed["function"]["name"], is_custom=True)


def name_in(namespace: str | None, name: str) -> str:
    """The name by which the policy knows a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str, call_id: str | None, raw_inputs: Mapping[str, str]) -> str:
    """The arguments of a call that gave a custom tool `text`."""
    is_raw = call_id is not None and raw_inputs.get(call_id) == text
    return text if is_raw else orjson.dumps({_INPUT: text}).decode()


def _input_of(arguments: str) -> str:
    """The text in the arguments of a custom tool. Arguments of any other form are returned as they are."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    if isinstance(given, dict) and given.keys() == {_INPUT} and isinstance(given[_INPUT], str):
        return str(given[_INPUT])
    return arguments


def _named(tool: Any) -> tuple[Any, Any] | None:
    """The name and namespace of an entry in a list of allowed tools; None for a hosted tool, which is never called."""
    if not isinstance(tool, dict):
        raise bad_request("allowed_tools must hold objects", param="tool_choice")
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        return None
    inner = tool.get(kind)
    return (inner if isinstance(inner, dict) else tool).get("name"), tool.get("namespace")


def has_function_calls(values: Sequence[Any]) -> bool:
    """Whether `without_function_calls` would change these messages."""
    return any(isinstance(value, dict) and _is_older(value) for value in values)


def without_function_calls(values: list[Any]) -> list[Any]:
    """The messages, with each `function_call` as a tool call and each message of the role `function` as its result.

    Such calls have no ids: a result answers the call before it.
    """
    told: list[Any] = []
    call_id = ""
    for index, value in enumerate(values):
        if not isinstance(value, dict) or not _is_older(value):
            told.append(value)
        elif value.get("role") == "function":
            told.append({**value, "role": "tool", "tool_call_id": call_id})
        else:
            call_id = f"function_call_{index}"
            rest = {name: v for name, v in value.items() if name != "function_call"}
            call = {"id": call_id, "type": "function", "function": value["function_call"]}
            told.append({**rest, "tool_calls": [call]})
    return told


def _is_older(message: dict[str, Any]) -> bool:
    return message.get("role") == "function" or bool(message.get("function_call"))
