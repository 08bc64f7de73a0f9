"""The contract of a tool-call format: how a family of models writes calls, and how its text is read.

A plugin registers a `ToolFormat` with `register_tool_formats`. `TaggedCalls` reads all formats that put calls
between tags, so that a format is often one function of the text between two tags.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import orjson

from areal_sdk.errors import MalformedCallError
from areal_sdk.types import Tool

__all__ = [
    "Content",
    "Event",
    "MalformedCallError",
    "Parser",
    "ReasoningDelta",
    "TaggedCalls",
    "TextDelta",
    "ToolCall",
    "ToolFormat",
]

MAX_DEPTH = 200
"""Maximum levels of a JSON value from a caller or a model. orjson writes 254: the others are for objects around the value."""

_WRITTEN_DEPTH = 254
"""Levels of JSON that orjson writes."""


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value has more than `MAX_DEPTH` levels."""
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call. `arguments` is JSON text, of an object."""

    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> Self:
        """The call of the tool `name`. MalformedCallError without a name, and for values that are no JSON.

        >>> ToolCall.of("add", {"a": 1})
        ToolCall(name='add', arguments='{"a":1}')
        """
        if not name:
            raise MalformedCallError("a call without a name")
        if is_too_deep(arguments):
            raise MalformedCallError("its arguments are no JSON, or nested too deep")
        return cls(name, orjson.dumps(arguments).decode())


Event = TextDelta | ReasoningDelta | ToolCall


class Parser(Protocol):
    """Reads one completion."""

    @property
    def problems(self) -> list[str]:
        """Reasons why texts that looked like tool calls were left as text."""
        ...

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """The text that was held back. Call this when no more text will come."""
        ...


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form in which a family of models writes tool calls."""

    name: str
    parser: Callable[[Sequence[Tool]], Parser]
    """Makes the parser of one completion, given the tools on offer."""
    opening: Callable[[str | None], str]
    """Makes the text that begins a call, of the named tool if one is given, for a `tool_choice` that demands a call."""
    shown: tuple[str, ...] = ()
    """Special tokens that carry meaning here and so must reach the parser as text."""
    detect: tuple[str, ...] = ()
    """Texts that identify the format: a chat template that contains one of them uses it."""
    call_id_length: int = 24


class Content:
    """Collects the text around tool calls: the space at its ends and around a call is layout."""

    def __init__(self) -> None:
        self._space = ""
        self._trims = True
        self._any = False

    def say(self, text: str) -> list[Event]:
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        text = self._space + text if text else ""
        if not text:
            return []
        said = text.rstrip()
        self._space = text[len(said) :]
        self._any = self._any or bool(said)
        return [TextDelta(said)] if said else []

    def call(self) -> None:
        """Note a call at this place. Text after it starts a new line."""
        self._space = "\n" if self._any else ""
        self._trims = True


class TaggedCalls:
    """Calls between a start and an end tag. Without an `end` a call goes on to the turn's end."""

    def __init__(self, start: str, end: str, decode: Callable[[str], list[ToolCall]]) -> None:
        """`decode` reads the text between the tags. It raises `MalformedCallError`, or another `ValueError` such as
        `json.JSONDecodeError`, for text that is no call: the text then stays content."""
        self.problems: list[str] = []
        self._start, self._end, self._decode = start, end, decode
        self._content = Content()
        self._inside = False
        self._held = ""
        """Text that is held back. Inside a call, the body of the call so far; outside, text that
        may turn out to be a start tag."""

    def feed(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while True:
            tag = self._end if self._inside else self._start
            before, found, after = self._held.partition(tag) if tag else (self._held, "", "")
            if not found:
                break
            self._held = after
            events += self._close(before, tag) if self._inside else self._content.say(before)
            self._inside = not self._inside
        if not self._inside:
            ready = len(self._held) - length_of_partial(self._held, self._start)
            events += self._content.say(self._held[:ready])
            self._held = self._held[ready:]
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._inside:  # many models end the turn without the end tag: a whole body is a call
            return self._close(held, "")
        return self._content.say(held)

    def _close(self, body: str, tag: str) -> list[Event]:
        try:
            calls = self._decode(body)
        except ValueError as exc:
            self.problems.append(f"malformed tool call: {exc}")
            return self._content.say(self._start + body + tag)
        self._content.call()
        return list(calls)


def length_of_partial(text: str, tag: str) -> int:
    """The number of characters at the end of `text` that may be the beginning of `tag`."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)
