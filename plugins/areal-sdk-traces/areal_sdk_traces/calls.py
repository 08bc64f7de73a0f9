"""Recorded model calls, and the conversations that they add up to."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from areal_sdk import Message
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON, WEIGHT, Conversation
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.rows import Row
from areal_sdk_traces.spans import Span

Part = TypeVar("Part", Row, Span)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request to a model with its answer."""

    trace: str
    """Calls of one trace or session belong together. Empty: those of one user do, which repeat each other's history."""
    began: str | float
    """The time, in any form that orders the calls of a trace."""
    prompt: list[Message]
    answer: Message
    """The model's answer. One with the weight 0 is context."""
    place: Place
    tools: list[JSON] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    user: str = ""
    tags: tuple[str, ...] = ()
    model: str = ""
    agent: str = ""
    """Id of the agent that made the call, in a trace of several."""


@dataclass(slots=True)
class Extra:
    """Facts about a trace from rows beside the calls."""

    scores: dict[str, float] = field(default_factory=dict)
    results: dict[str, Message] = field(default_factory=dict)
    """Tool results by call. They are added where no later call repeats them."""
    result_places: dict[str, Place] = field(default_factory=dict)
    user: str = ""
    tags: tuple[str, ...] = ()
    comments: list[str] = field(default_factory=list)
    agent_parents: dict[str, str] = field(default_factory=dict)
    num_given: Counter[str] = field(default_factory=Counter)

    def add_score(self, name: str, value: float) -> None:
        """Several scores of one name count with their mean, so their order in the file changes nothing."""
        self.num_given[name] += 1
        before = self.scores.get(name, 0.0)
        self.scores[name] = before + (value - before) / self.num_given[name]


def read_calls(
    parts: Iterable[Part], read: Callable[[Part], RecordedCall | None], book: Book
) -> list[RecordedCall]:
    """The calls that `read` finds, one a part at most. A part that it cannot read is damage in the book."""
    calls = []
    for part in parts:
        with book.guarding(part.place):
            if (call := read(part)) is not None:
                calls.append(call)
    return calls


def conversations_of(
    format: str,
    calls: Iterable[RecordedCall],
    book: Book,
    extras: Mapping[str, Extra] | None = None,
) -> Iterator[Conversation]:
    """The conversations of all traces, each trace's calls in the order of time."""
    by_trace: dict[tuple[str, str], list[RecordedCall]] = {}
    for call in calls:
        by_trace.setdefault((call.trace, "" if call.trace else call.user), []).append(call)
    for (trace, _), of_trace in by_trace.items():
        extra = (extras or {}).get(trace) or Extra()
        of_trace.sort(key=lambda call: (isinstance(call.began, str), call.began))
        graph = Graph(book)
        repeated = {message.get("tool_call_id") for call in of_trace for message in call.prompt}
        for call in of_trace:
            with book.guarding(call.place):
                _add(graph, call)
                _add_results(graph, call, extra, repeated)
        for name, place in extra.result_places.items():
            if name in repeated:
                book.used([place])
        yield from graph.conversations(
            Origin(
                format,
                trace,
                user=extra.user or next((call.user for call in of_trace if call.user), ""),
                tags=tuple(dict.fromkeys([*extra.tags, *(t for c in of_trace for t in c.tags)])),
                scores=extra.scores,
                comments=tuple(extra.comments),
                agent_parents=extra.agent_parents,
            )
        )


def _add(graph: Graph, call: RecordedCall) -> None:
    is_learnt = call.answer.get(WEIGHT) != 0
    graph.add(
        call.prompt if is_learnt else [*call.prompt, call.answer],
        call.answer if is_learnt else None,
        places=[call.place],
        tools=call.tools,
        scores=call.scores,
        model=call.model,
        agent=call.agent,
    )


def _add_results(graph: Graph, call: RecordedCall, extra: Extra, repeated: set[str | None]) -> None:
    """Add the results of the tool calls in the last answer of `call` to `graph`: rows of their own in `extra`."""
    made = [one["id"] for one in call.answer.get("tool_calls") or ()]
    last = [name for name in made if name in extra.results and name not in repeated]
    if last:
        graph.add(
            [*call.prompt, call.answer, *(extra.results[name] for name in last)],
            None,
            places=[extra.result_places[name] for name in last],
            tools=call.tools,
            model=call.model,
            agent=call.agent,
        )
