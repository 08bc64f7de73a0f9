"""Spans and events out of OTLP's JSON, of the console exporter's, and of Phoenix's."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from areal_sdk_traces.book import BadRowError, Book, Fate, Place
from areal_sdk_traces.conversation import JSON
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, optional, rows_of, word


@dataclass(frozen=True, slots=True)
class Span:
    """One span, or one log record, which has an empty `kind`."""

    trace: str
    id: str
    parent: str
    name: str
    began: str
    attributes: JSON
    events: list[JSON]
    """Events, each with `name` and `attributes`."""
    place: Place
    is_log: bool = False


def read_spans(rows: Iterable[Row], book: Book) -> Iterator[Span]:
    for row in rows:
        with book.guarding(row.place):
            yield from _spans(row, book)


def _spans(row: Row, book: Book) -> Iterator[Span]:
    value = mapping(row.value, "the row")
    for outer, inner, items, is_log in (
        ("resourceSpans", "scopeSpans", "spans", False),
        ("resourceLogs", "scopeLogs", "logRecords", True),
    ):
        if outer in value:
            given = [
                one
                for resource in rows_of(value[outer], outer)
                for scope in rows_of(mapping(resource, outer).get(inner), inner)
                for one in rows_of(mapping(scope, inner).get(items), items)
            ]
            if not given:
                book.write(row.place, Fate.NO_MESSAGE, f"no {items} in it")
            for index, one in enumerate(given):
                part = row.part(one, f"{items.rstrip('s')} {index}", book)
                with book.guarding(part.place):
                    yield _span(part, is_log=is_log)
            return
    if "resourceMetrics" in value:
        book.write(row.place, Fate.NO_MESSAGE, "metrics")
        return
    yield _span(row, is_log="body" in value or "severity_number" in value)


def _span(row: Row, *, is_log: bool = False) -> Span:
    value = mapping(row.value, "the span")
    context = mapping(value.get("context") or {}, "the context")
    ids = {**context, **value}
    trace = name_in(ids, "traceId", "trace_id")
    attributes = _attributes(value.get("attributes") or [])
    if is_log:
        attributes = {**attributes, **_body(value.get("body"))}
    return Span(
        trace.removeprefix("0x"),
        name_in(ids, "spanId", "span_id").removeprefix("0x"),
        word(value, "parentSpanId", "parent_id").removeprefix("0x"),
        word(value, "eventName", "event_name", "name") or word(attributes, "event.name"),
        str(optional(value, "startTimeUnixNano", "timeUnixNano", "start_time", "timestamp") or ""),
        attributes,
        [
            {
                "name": word(mapping(one, "an event"), "name"),
                "attributes": _attributes(one.get("attributes") or []),
            }
            for one in rows_of(value.get("events") or [], "the events")
        ],
        row.place,
        is_log,
    )


def _attributes(value: object) -> JSON:
    """Attributes as a mapping, from OTLP's list of keys and typed values too."""
    if isinstance(value, dict):
        return value
    return {
        name_in(mapping(one, "an attribute"), "key"): _value(one.get("value"))
        for one in rows_of(value, "the attributes")
    }


def _body(value: object) -> JSON:
    """The fields of a log record's body; none if it is no object."""
    if isinstance(value, dict) and "kvlistValue" in value:
        value = _value(value)
    return value if isinstance(value, dict) else {}


def _value(value: object) -> Any:
    """The value of OTLP's `AnyValue`."""
    given = mapping(value, "the value of an attribute")
    for kind in ("stringValue", "boolValue", "doubleValue"):
        if kind in given:
            return given[kind]
    if "intValue" in given:
        try:
            return int(given["intValue"])
        except (TypeError, ValueError):
            raise BadRowError(f"an intValue is {given['intValue']!r}") from None
    if "arrayValue" in given:
        listed = mapping(given["arrayValue"], "an arrayValue").get("values") or []
        return [_value(one) for one in rows_of(listed, "its values")]
    if "kvlistValue" in given:
        return _attributes(mapping(given["kvlistValue"], "a kvlistValue").get("values") or [])
    return None
