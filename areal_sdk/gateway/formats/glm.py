"""GLM 4.5 and later, and Qwen 3 Coder: the arguments one by one between tags, without quotes."""

import re
from collections.abc import Sequence
from functools import partial

from areal_sdk.gateway.formats.calls import declared_types, make_call, unquoted
from areal_sdk.gateway.parsers import MalformedCall, TaggedCalls, ToolCall, ToolFormat
from areal_sdk.types import Tool

_START, _END = "<tool_call>", "</tool_call>"

_GLM_NAME = re.compile(r"\s*(?P<name>[^\s<>{]+)\s*(?=<arg_key>|$)")
_GLM_ARGUMENT = re.compile(
    r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL
)

_CODER_NAME = re.compile(r"\s*<function=(?P<name>[^>\n]+)>")
_CODER_ARGUMENT = re.compile(
    r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL
)


def _decode(
    name: re.Pattern[str], argument: re.Pattern[str], tools: Sequence[Tool], body: str
) -> list[ToolCall]:
    head = name.match(body)
    if head is None:
        raise MalformedCall("no tool name before the arguments")
    types = declared_types(tools, head["name"])
    arguments = {
        key: unquoted(match["value"], types.get(key))
        for match in argument.finditer(body, head.end())
        for key in (match["key"].strip(),)
    }
    return [make_call(head["name"].strip(), arguments)]


def _glm_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_START, _END, partial(_decode, _GLM_NAME, _GLM_ARGUMENT, tools))


def _coder_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_START, _END, partial(_decode, _CODER_NAME, _CODER_ARGUMENT, tools))


GLM = ToolFormat(
    name="glm",
    parser=_glm_parser,
    shown=(_START, _END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    opening=lambda name: _START + (f"{name}\n" if name else ""),
    detect=("<arg_key>",),
)

QWEN_CODER = ToolFormat(
    name="qwen_coder",
    parser=_coder_parser,
    shown=(_START, _END),
    opening=lambda name: f"{_START}\n<function=" + (f"{name}>\n" if name else ""),
    detect=("<function=",),
)
