"""OpenTelemetry's conventions for generative AI: spans `chat`, `execute_tool`, `invoke_agent`, and their events.

The messages are attributes of a span, or of the event `gen_ai.client.inference.operation.details`. Older
instrumentations write an event for each message, in the span or as a log record, or `gen_ai.prompt.N.*`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Fate
from areal_sdk_traces.calls import Extra, RecordedCall, conversations_of
from areal_sdk_traces.conversation import JSON, Conversation, finite
from areal_sdk_traces.messages import (
    Lost,
    answer_of,
    as_context,
    call_of,
    first_of,
    is_cut_off,
    read_message,
    read_messages,
    read_tools,
    result_of,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import name_in, parsed, parsed_or_text, word
from areal_sdk_traces.spans import Span, read_spans

_CHAT = ("chat", "generate_content", "text_completion")
_DETAILS = "gen_ai.client.inference.operation.details"
_EVALUATION = "gen_ai.evaluation.result"
_Said = dict[tuple[str, object], tuple[list[Message], list[JSON]]]
"""All messages up to the answer of a call, and its tools, by the call's trace and number."""
_OLD_ROLES = ("system", "user", "assistant", "tool")
_EVENT = re.compile(rf"gen_ai\.(?:(?:{'|'.join(_OLD_ROLES)})\.message|choice)")
"""Events that have one message each."""


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    spans = _with_logs(read_spans(rows, book), book)
    agents = _agents(spans)
    names = {span.trace: word(span.attributes, "gen_ai.conversation.id") for span in spans}
    names |= {
        span.trace: span.attributes["gen_ai.conversation.id"]
        for span in spans
        if span.attributes.get("gen_ai.conversation.id")
    }
    details = {span.id: span.attributes for span in spans if span.is_log and span.name == _DETAILS}
    calls, extras = [], dict[str, Extra]()
    said: _Said = {}
    for span in spans:
        name = names[span.trace] or span.trace
        extra = extras.setdefault(name, Extra())
        with book.guarding(span.place):
            _score(span, extra, book)
            extra.user = extra.user or word(span.attributes, "user.id", "enduser.id")
            call = _read(span, name, extra, agents, details, said, book)
            if call is not None:
                calls.append(call)
    for child, parent in _agent_parents(spans, agents).items():
        for extra in extras.values():
            extra.agent_parents[child] = parent
    yield from conversations_of("otel", calls, book, extras)


def _with_logs(found: Iterable[Span], book: Book) -> list[Span]:
    """The spans, with the messages that log records have as their events. Other records stay."""
    spans = [*found]
    calls = {span.id for span in spans if not span.is_log}
    logged: dict[str, list[Span]] = {}
    kept = []
    for span in spans:
        if span.is_log and span.id in calls and _EVENT.fullmatch(span.name):
            logged.setdefault(span.id, []).append(span)
            book.used([span.place])
        else:
            kept.append(span)
    return [
        span if span.is_log or span.id not in logged else _told(span, logged[span.id])
        for span in kept
    ]


def _told(span: Span, logged: list[Span]) -> Span:
    events = [{"name": one.name, "attributes": one.attributes} for one in logged]
    return replace(span, events=[*span.events, *events])


def _read(
    span: Span,
    name: str,
    extra: Extra,
    agents: dict[str, str],
    details: dict[str, JSON],
    said: "_Said",
    book: Book,
) -> RecordedCall | None:
    """The call of a span. A tool's result goes to `extra`; other spans go to the book."""
    kept = span.attributes
    if span.is_log:
        if span.name in (_DETAILS, _EVALUATION):
            book.used([span.place])
        else:
            book.write(span.place, Fate.NO_MESSAGE, f"the event {span.name!r}")
        return None
    operation = word(kept, "gen_ai.operation.name")
    if operation == "execute_tool":
        call_id = name_in(kept, "gen_ai.tool.call.id")
        if "gen_ai.tool.call.result" not in kept:
            book.write(span.place, Fate.PART_LOST, "a tool's span without its result")
            return None
        value = parsed_or_text(kept["gen_ai.tool.call.result"])
        extra.results[call_id] = result_of(call_id, value, lambda what: None)
        extra.result_places[call_id] = span.place
        return None
    has_messages = any(key.startswith(("gen_ai.prompt.", "gen_ai.input.messages")) for key in kept)
    if operation not in _CHAT and not (has_messages and operation != "invoke_agent"):
        book.write(span.place, Fate.NO_MESSAGE, f"the operation {operation or span.name!r}")
        return None
    lost = book.losing(span.place)
    attributes = {**details.get(span.id, {}), **kept}
    prompt, answer = _messages(span, attributes, lost)
    told = parsed(attributes.get("gen_ai.tool.definitions"), "gen_ai.tool.definitions")
    tools = read_tools(told)
    if is_cut_off(_ends(span, attributes)):
        answer = as_context(answer, lost)
    turn = kept.get("areal_sdk.turn")
    prompt, tools = _continued(span, prompt, answer, tools, said)
    return RecordedCall(
        name,
        float(turn) if isinstance(turn, int) else span.began,
        prompt,
        answer,
        span.place,
        tools=tools,
        model=word(kept, "gen_ai.response.model", "gen_ai.request.model"),
        agent=agents.get(span.id, ""),
    )


def _ends(span: Span, attributes: JSON) -> list[object]:
    """The places where a span says how its answer ended."""
    finished = attributes.get("gen_ai.response.finish_reasons") or []
    named = [*finished] if isinstance(finished, list) else [finished]
    named.append(attributes.get("gen_ai.completion.0.finish_reason"))
    said = parsed_or_text(attributes.get("gen_ai.output.messages"))
    chosen = [one["attributes"] for one in span.events if one["name"] == "gen_ai.choice"]
    return [
        *({"finish_reason": one} for one in named),
        *(said[:1] if isinstance(said, list) else ()),
        *chosen[:1],
    ]


def _continued(
    span: Span, prompt: list[Message], answer: Message, tools: list[JSON], said: "_Said"
) -> tuple[list[Message], list[JSON]]:
    """The whole prompt and the tools of a call. The calls of our own runs have only the messages that were new."""
    turn, before = (span.attributes.get(f"areal_sdk.{name}") for name in ("turn", "continues"))
    if before is not None:
        if (span.trace, before) not in said:
            raise BadRowError(f"the call {before}, which it continues, is not here or is damaged")
        earlier, first_tools = said[span.trace, before]
        prompt, tools = [*earlier, *prompt], tools or first_tools
    if turn is not None:
        said[span.trace, turn] = [*prompt, answer], tools
    return prompt, tools


def _messages(span: Span, attributes: JSON, lost: Lost) -> tuple[list[Message], Message]:
    if "gen_ai.input.messages" in attributes:
        prompt = []
        if system := attributes.get("gen_ai.system_instructions"):
            parts = parsed(system, "gen_ai.system_instructions")
            prompt += read_message({"role": "system", "parts": parts}, lost)
        given = parsed(attributes["gen_ai.input.messages"], "gen_ai.input.messages")
        prompt += read_messages(given, lost)
        said = parsed(attributes.get("gen_ai.output.messages"), "gen_ai.output.messages")
        if not said:
            raise BadRowError("no 'gen_ai.output.messages': the answer is missing")
        choice = first_of(said, lost) if isinstance(said, list) else said
        return prompt, read_messages(choice, lost, role="assistant")[0]
    old = [event for event in span.events if event["name"].startswith("gen_ai.")]
    prompt, answers = [], []
    for event in old:
        kind = event["name"].removeprefix("gen_ai.").removesuffix(".message")
        value = event["attributes"]
        if kind in _OLD_ROLES:
            calls = parsed_or_text(value.get("tool_calls"))
            prompt += read_message(
                {"role": kind, "tool_call_id": value.get("id"), **value, "tool_calls": calls}, lost
            )
        elif kind == "choice":
            answers += read_messages(parsed_or_text(value.get("message")), lost, role="assistant")
    if not old:
        prompt, answers = _numbered(attributes, "prompt"), _numbered(attributes, "completion")
    if not prompt:
        raise BadRowError("no messages: their content was not captured")
    if not answers:
        raise BadRowError("the answer is missing")
    return prompt, first_of(answers, lost)


def _numbered(attributes: JSON, kind: str) -> list[Message]:
    """The messages of `gen_ai.prompt.N.*`."""
    found: list[Message] = []
    while (role := word(attributes, key := f"gen_ai.{kind}.{len(found)}.role")) or word(
        attributes, key.removesuffix("role") + "content"
    ):
        prefix, calls = key.removesuffix("role"), list[JSON]()
        while name := word(attributes, f"{prefix}tool_calls.{len(calls)}.name"):
            start = f"{prefix}tool_calls.{len(calls)}."
            calls.append(
                call_of(
                    word(attributes, start + "id") or name,
                    name,
                    attributes.get(start + "arguments"),
                )
            )
        content = word(attributes, prefix + "content")
        if role == "tool":
            call_id = word(attributes, prefix + "tool_call_id")
            found.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif role == "assistant" or kind == "completion":
            found.append(answer_of(content, calls))
        else:
            found.append({"role": role or "user", "content": content})
    return found


def _score(span: Span, extra: Extra, book: Book) -> None:
    """The evaluations of a span's events, or of a log record."""
    events: list[JSON] = span.events
    if span.is_log:
        events = [{"name": span.name, "attributes": span.attributes}]
    for event in events:
        if event["name"] != _EVALUATION:
            continue
        value = finite(event["attributes"].get("gen_ai.evaluation.score.value"))
        if "areal_sdk.turn" in event["attributes"]:
            book.write(span.place, Fate.PART_LOST, "the score of a single call")
        elif value is None:
            book.write(span.place, Fate.PART_LOST, "an evaluation without a score")
        else:
            extra.add_score(name_in(event["attributes"], "gen_ai.evaluation.name"), value)


def _agents(spans: list[Span]) -> dict[str, str]:
    """The span of the agent that each span is below."""
    by_id = {span.id: span for span in spans if not span.is_log}
    found: dict[str, str] = {}
    for span in by_id.values():
        above, seen = by_id.get(span.parent), set[str]()
        while above is not None and above.id not in seen and not _is_agent(above):
            seen.add(above.id)
            above = by_id.get(above.parent)
        if above is not None and _is_agent(above):
            found[span.id] = above.id
    return found


def _is_agent(span: Span) -> bool:
    return word(span.attributes, "gen_ai.operation.name") == "invoke_agent"


def _agent_parents(spans: list[Span], agents: dict[str, str]) -> dict[str, str]:
    return {span.id: agents[span.id] for span in spans if _is_agent(span) and span.id in agents}
