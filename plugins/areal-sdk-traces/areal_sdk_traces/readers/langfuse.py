"""Langfuse: traces with their observations (download, API), or rows of observations, traces and scores (blob export)."""

from collections.abc import Iterable, Iterator

from areal_sdk_traces.book import BadRowError, Book, Fate, Place
from areal_sdk_traces.calls import Extra, RecordedCall, conversations_of, read_calls
from areal_sdk_traces.conversation import JSON, Conversation, finite
from areal_sdk_traces.messages import (
    as_context,
    first_of,
    is_cut_off,
    read_answer,
    read_messages,
    read_tools,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import (
    mapping,
    name_in,
    optional,
    parsed_or_text,
    rows_of,
    text,
    whole,
    word,
    words,
)


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    extras: dict[str, Extra] = {}
    told: dict[str, list[Place]] = {}
    """The rows about each trace that are no calls."""
    parts = (part for row in rows for part in _parts(row, book))
    calls = read_calls(parts, lambda part: _read(part, extras, told, book), book)
    known = {call.trace for call in calls}
    for trace, places in told.items():
        for place in places if trace not in known else ():
            book.write(place, Fate.NO_MESSAGE, f"about {trace!r}, of which no generation was read")
    yield from conversations_of("langfuse", calls, book, extras)


def _parts(row: Row, book: Book) -> Iterator[Row]:
    """The rows of a trace's download, or of a page of the API."""
    value = row.value
    if not isinstance(value, dict):
        book.write(row.place, Fate.DAMAGED, "the row is not an object")
        return
    if isinstance(value.get("data"), list) and "id" not in value:
        for index, one in enumerate(value["data"]):
            yield from _parts(row.part(one, f"row {index}", book), book)
        return
    inside = value.get("trace")
    trace = inside if isinstance(inside, dict) else value
    inner: list[tuple[str, int, object]] = []
    with book.guarding(row.place):
        for kind in ("observations", "scores"):
            listed = rows_of(value.get(kind) or trace.get(kind) or [], f"the field {kind!r}")
            inner += ((kind, index, one) for index, one in enumerate(listed))
    if not inner:
        yield row
        return
    yield row.part(
        {k: v for k, v in trace.items() if k not in ("observations", "scores")}, "trace", book
    )
    for kind, index, one in inner:
        if kind == "scores" and isinstance(one, dict):
            one = {"traceId": trace.get("id"), **one}
        yield row.part(one, f"{kind.rstrip('s')} {index}", book)


def _read(
    row: Row, extras: dict[str, Extra], told: dict[str, list[Place]], book: Book
) -> RecordedCall | None:
    value = mapping(row.value, "the row")
    if "type" not in value and ("dataType" in value or "data_type" in value or "value" in value):
        trace = name_in(value, "traceId", "trace_id")
        _score(row, value, extras.setdefault(trace, Extra()), book)
        told.setdefault(trace, []).append(row.place)
        return None
    if "type" not in value and not ("traceId" in value or "trace_id" in value):
        extra = extras.setdefault(trace := name_in(value, "id"), Extra())
        told.setdefault(trace, []).append(row.place)
        extra.user, extra.tags = word(value, "userId", "user_id"), words(value.get("tags"))
        book.used([row.place])
        return None
    trace = name_in(value, "traceId", "trace_id")
    kind = text(value.get("type"), "the type")
    if kind != "GENERATION":
        book.write(row.place, Fate.NO_MESSAGE, f"an observation of type {kind}")
        return None
    return _generation(row, value, trace, book)


def _score(row: Row, value: JSON, extra: Extra, book: Book) -> None:
    if comment := word(value, "comment"):
        extra.comments.append(comment)
    number = finite(value.get("value"))
    if number is None:
        book.write(row.place, Fate.PART_LOST, f"the score {value.get('name')!r} is no number")
        return
    extra.add_score(name_in(value, "name"), number)
    book.used([row.place])


def _generation(row: Row, value: JSON, trace: str, book: Book) -> RecordedCall:
    lost = book.losing(row.place)
    asked, said = parsed_or_text(value.get("input")), parsed_or_text(value.get("output"))
    if asked is None:
        raise BadRowError("no 'input'")
    if said is None:
        raise BadRowError("no 'output': the answer is missing")
    asked, said = whole(asked, "the input"), whole(said, "the output")
    tools = asked.get("tools") if isinstance(asked, dict) else None
    tools = tools or parsed_or_text(optional(value, "toolDefinitions", "tool_definitions"))
    ended = said
    if isinstance(said, dict) and isinstance(said.get("choices"), list) and said["choices"]:
        choice = mapping(first_of(said["choices"], lost), "a choice")
        said, ended = choice.get("message"), choice
    answer = read_answer(said, lost, "the output is")
    if is_cut_off(ended):
        answer = as_context(answer, lost)
    return RecordedCall(
        trace,
        word(value, "startTime", "start_time"),
        read_messages(asked, lost),
        answer,
        row.place,
        tools=read_tools(rows_of(tools or [], "the tools")),
        user=word(value, "userId", "user_id"),
        tags=words(value.get("tags")),
        model=word(value, "model", "providedModelName", "provided_model_name"),
    )
