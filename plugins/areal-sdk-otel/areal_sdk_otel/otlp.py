"""OTLP in JSON: spans, log records, and the bodies of requests that carry them.

Fields are in lowerCamelCase, ids are hexadecimal, and 64-bit integers are strings, as the OTLP specification asks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final

import orjson

Attribute = str | bool | int | float | Sequence[str] | None
Attributes = Mapping[str, Attribute]

SCOPE: Final = "areal_sdk_otel"
SEVERITY_INFO: Final = 9
STATUS_ERROR: Final = 2
IS_SAMPLED: Final = 1


class Kind(IntEnum):
    """The kind of a span."""

    INTERNAL = 1
    CLIENT = 3


class Signal(StrEnum):
    """The end of a collector's address, `/v1/SIGNAL`."""

    TRACES = "traces"
    LOGS = "logs"


def span(
    *,
    trace: str,
    id: str,
    parent: str = "",
    name: str,
    kind: Kind,
    start_ns: int,
    end_ns: int,
    attributes: Attributes,
    error: str | None = None,
) -> bytes:
    """A span. `error` is the message of an operation that failed."""
    made: dict[str, Any] = {
        "traceId": trace,
        "spanId": id,
        "name": clean(name),
        "kind": int(kind),
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(max(start_ns, end_ns)),
        "flags": IS_SAMPLED,
        "attributes": key_values(attributes),
    }
    if parent:
        made["parentSpanId"] = parent
    if error is not None:
        made["status"] = {"code": STATUS_ERROR, "message": clean(error)}
    return orjson.dumps(made)


def event(*, trace: str, span: str, name: str, time_ns: int, attributes: Attributes) -> bytes:
    """A log record with an event's name, which belongs to a span."""
    return orjson.dumps(
        {
            "timeUnixNano": str(time_ns),
            "observedTimeUnixNano": str(time_ns),
            "severityNumber": SEVERITY_INFO,
            "severityText": "INFO",
            "eventName": name,
            "attributes": key_values(attributes),
            "flags": IS_SAMPLED,
            "traceId": trace,
            "spanId": span,
        }
    )


def body(signal: Signal, resource: Attributes, pieces: Iterable[bytes]) -> bytes:
    """A request with these spans or log records."""
    outer, inner, each = {
        Signal.TRACES: (b"resourceSpans", b"scopeSpans", b"spans"),
        Signal.LOGS: (b"resourceLogs", b"scopeLogs", b"logRecords"),
    }[signal]
    about = orjson.dumps({"attributes": key_values(resource)})
    scope = orjson.dumps({"name": SCOPE})
    return b'{"%b":[{"resource":%b,"%b":[{"scope":%b,"%b":[%b]}]}]}' % (
        *(outer, about, inner, scope, each),
        b",".join(pieces),
    )


def key_values(attributes: Attributes) -> list[dict[str, Any]]:
    """The attributes that have a value.

    >>> key_values({"a": 1, "b": None, "c": ("x",), "d": float("nan")})
    [{'key': 'a', 'value': {'intValue': '1'}}, {'key': 'c', 'value': {'arrayValue': {'values': [{'stringValue': 'x'}]}}}]
    """
    return [
        {"key": str(key), "value": _value(value)}
        for key, value in attributes.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    ]


def _value(value: str | bool | int | float | Sequence[str]) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": clean(value)}
        case _:
            return {"arrayValue": {"values": [_value(one) for one in value]}}


def clean(text: str) -> str:
    """The text as valid Unicode. A lone half of a surrogate pair becomes a question mark, because no receiver takes it.

    >>> clean("a\\ud800b")
    'a?b'
    """
    return str(text).encode("utf-8", "replace").decode()
