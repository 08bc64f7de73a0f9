"""Llama 3: a turn that is nothing but a JSON object (or several, `;` between them) is a call."""

import re
from collections.abc import Sequence

from areal_sdk.gateway.formats.calls import as_call, parse_json
from areal_sdk.gateway.parsers import Event, MalformedCall, TextDelta, ToolCall, ToolFormat
from areal_sdk.types import Tool

_TAG = "<|python_tag|>"

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
            if begun[:1] in ("", "{") or begun.startswith(_TAG) or _TAG.startswith(begun):
                return []
            self._is_text = True
        text, self._held = self._held, ""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._is_text or not held.strip():
            return [TextDelta(held)] if held else []
        try:
            return list(self._read(held.strip().removeprefix(_TAG)))
        except MalformedCall as exc:
            self.problems.append(f"malformed tool call: {exc}")
            return [TextDelta(held)]

    def _read(self, text: str) -> list[ToolCall]:
        calls = [as_call(parse_json(part)) for part in _BETWEEN_CALLS.split(text.strip())]
        unknown = next((call.name for call in calls if call.name not in self._names), None)
        if unknown is not None:  # an answer that is JSON is not a call
            raise MalformedCall(f"{unknown!r} is not one of the tools")
        return calls


LLAMA = ToolFormat(
    name="llama",
    parser=WholeJson,
    shown=(_TAG,),
    opening=lambda name: '{"name": "' + (f'{name}", "parameters": ' if name else ""),
    detect=('"parameters": ', _TAG),
)
