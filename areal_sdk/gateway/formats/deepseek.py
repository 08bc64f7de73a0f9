"""DeepSeek V3, R1 and V3.1: calls between `tool calls begin` and `tool calls end` tokens."""

import re
from collections.abc import Sequence

from areal_sdk.gateway.formats.calls import as_call, parse_json
from areal_sdk.gateway.parsers import MalformedCall, TaggedCalls, ToolCall, ToolFormat
from areal_sdk.types import Tool

_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
_BEGIN, _END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001

_FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*?)\n?```", re.DOTALL)
"""V3 and R1: `function`, the separator, the name, and the arguments in a code fence."""


def _decode(body: str) -> list[ToolCall]:
    calls = [_decode_one(part.partition(_END)[0]) for part in body.split(_BEGIN)[1:]]
    if not calls:
        raise MalformedCall("no call between the tags")
    return calls


def _decode_one(text: str) -> ToolCall:
    first, separator, second = text.partition(_SEP)
    if not separator:
        raise MalformedCall("a call without a separator")
    if fenced := _FENCED.fullmatch(second.strip()):
        name, arguments = fenced["name"], fenced["arguments"]
    else:
        name, arguments = first, second
    return as_call({"name": name.strip(), "arguments": parse_json(arguments)})


def _parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_BEGIN_ALL, _END_ALL, _decode)


def _opening(name: str | None) -> str:
    return f"{_BEGIN_ALL}{_BEGIN}function{_SEP}" + (f"{name}\n```json\n" if name else "")


DEEPSEEK = ToolFormat(
    name="deepseek",
    parser=_parser,
    shown=(_BEGIN_ALL, _END_ALL, _BEGIN, _END, _SEP),
    opening=_opening,
    detect=(_BEGIN_ALL,),
)
