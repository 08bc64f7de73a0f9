"""Mistral: `[TOOL_CALLS]` and a list of JSON calls, or (since 2025) a name and its arguments."""

from collections.abc import Sequence

from areal_sdk.gateway.formats.calls import as_call, parse_json
from areal_sdk.gateway.parsers import MalformedCall, TaggedCalls, ToolCall, ToolFormat
from areal_sdk.types import Tool

_TAG = "[TOOL_CALLS]"


def _decode(body: str) -> list[ToolCall]:
    calls = [call for part in body.split(_TAG) if part.strip() for call in _decode_one(part)]
    if not calls:
        raise MalformedCall("nothing after [TOOL_CALLS]")
    return calls


def _decode_one(part: str) -> list[ToolCall]:
    part = part.strip()
    if part.startswith("["):
        values = parse_json(part)
        return [as_call(value) for value in values]
    head, brace, rest = part.partition("{")
    name = head.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
    if not name or not brace:
        raise MalformedCall("neither a list of calls nor a name and its arguments")
    return [as_call({"name": name, "arguments": parse_json(brace + rest)})]


def _parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls(_TAG, "", _decode)


def _opening(name: str | None) -> str:
    return f"{_TAG}[" + (f'{{"name": "{name}", "arguments": ' if name else "")


MISTRAL = ToolFormat(
    name="mistral",
    parser=_parser,
    shown=(_TAG, "[ARGS]", "[CALL_ID]"),
    opening=_opening,
    detect=(_TAG,),
    call_id_length=9,
)
