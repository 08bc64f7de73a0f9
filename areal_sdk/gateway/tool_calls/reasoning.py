"""The split of sampled text into reasoning and the rest. The parser of tool calls reads the rest.

However the text is cut into pieces, the events add up to the same message (property test). A tool
call that cannot be read stays in the content, and the reason is noted: never an exception.
"""

from enum import Enum, auto

from areal_sdk.tool_calls import Event, Parser, ReasoningDelta, TextDelta, length_of_partial


class PlainText:
    """The parser of requests without tools: everything is content."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def feed(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


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
        ready = len(self._held) - length_of_partial(self._held, self._end)
        ready = len(self._held[:ready].rstrip())
        events += self._say(self._held[:ready])
        self._held = self._held[ready:]

    def _say(self, thought: str) -> list[Event]:
        thought = thought if self._any_thought else thought.lstrip()
        self._any_thought = self._any_thought or bool(thought)
        return [ReasoningDelta(thought)] if thought else []
