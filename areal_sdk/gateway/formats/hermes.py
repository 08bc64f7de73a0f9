"""JSON in `<tool_call>` tags: Hermes, Qwen 2.5, Qwen 3 and many others."""

from collections.abc import Sequence

from areal_sdk.gateway.formats.calls import as_call, parse_json
from areal_sdk.gateway.parsers import TaggedCalls, ToolFormat
from areal_sdk.types import Tool


def _parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls("<tool_call>", "</tool_call>", lambda body: [as_call(parse_json(body))])


def _opening(name: str | None) -> str:
    return "<tool_call>\n" + (f'{{"name": "{name}", "arguments": ' if name else "")


HERMES = ToolFormat(
    name="hermes",
    parser=_parser,
    shown=("<tool_call>", "</tool_call>"),
    opening=_opening,
    detect=("<tool_call>",),
)
