"""Parses sampled text into reasoning, content and tool calls, incrementally.

However the text is cut into pieces, the events add up to the same message (property test). A tool
call that cannot be read stays in the content, and the reason is noted: never an exception.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from areal_sdk.gateway.errors import MalformedCallError
from areal_sdk.types import Tool


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
    """The text that begins a call (of that tool), for a `tool_choice` that demands one."""
    shown: tuple[str, ...] = ()
    """Special tokens that carry meaning here and so must reach the parser as text."""
    detect: tuple[str, ...] = ()
    """Substrings of a chat template that speak this format; one is enough."""
    call_id_length: int = 24


class PlainText:
    """The parser of requests without tools: everything is content."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def feed(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


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
        """`decode` reads the text between the tags. It may raise `MalformedCallError`."""
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
            ready = len(self._held) - _length_of_partial(self._held, self._start)
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
        except MalformedCallError as exc:
            self.problems.append(f"malformed tool call: {exc}")
            return self._content.say(self._start + body + tag)
        self._content.call()
        return list(calls)


def _length_of_partial(text: str, tag: str) -> int:
    """The number of characters at the end of `text` that may be the beginning of `tag`."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)


class _Stage(Enum):
    BEFORE = auto()
    THINKING = auto()
    GAP = auto()
    ANSWER = auto()


class Reasoning:
    """Takes a leading `<think> ... </think>` off and hands the rest to `inner`."""

    def __init__(
        self,
        inner: Parser,
        *,
        open_already: bool = False,
        start: str = "<think>",
        end: str = "</think>",
    ) -> None:
        """`open_already`: the prompt ended with the start tag, so the model begins by thinking."""
        self._inner = inner
        self._start, self._end = start, end
        self._stage = _Stage.THINKING if open_already else _Stage.BEFORE
        self._held = ""
        self._any_thought = False

    @property
    def problems(self) -> list[str]:
        return self._inner.problems

    def feed(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        if self._stage is _Stage.BEFORE:
            self._look_for_start()
        if self._stage is _Stage.THINKING:
            self._think(events)
        if self._stage is _Stage.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._stage = _Stage.ANSWER
        if self._stage is _Stage.ANSWER:
            held, self._held = self._held, ""
            events += self._inner.feed(held)
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._stage is _Stage.THINKING:
            return [*self._say(held.rstrip()), *self._inner.finish()]
        return [*self._inner.feed(held), *self._inner.finish()]

    def _look_for_start(self) -> None:
        lead = self._held.lstrip()
        if lead.startswith(self._start):
            self._stage, self._held = _Stage.THINKING, lead[len(self._start) :]
        elif not self._start.startswith(lead):
            self._stage = _Stage.ANSWER

    def _think(self, events: list[Event]) -> None:
        thought, tag, rest = self._held.partition(self._end)
        if tag:
            events += self._say(thought.rstrip())
            self._stage, self._held = _Stage.GAP, rest
            return
        ready = len(self._held) - _length_of_partial(self._held, self._end)
        ready = len(self._held[:ready].rstrip())
        events += self._say(self._held[:ready])
        self._held = self._held[ready:]

    def _say(self, thought: str) -> list[Event]:
        thought = thought if self._any_thought else thought.lstrip()
        self._any_thought = self._any_thought or bool(thought)
        return [ReasoningDelta(thought)] if thought else []
