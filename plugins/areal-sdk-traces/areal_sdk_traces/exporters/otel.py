"""OpenTelemetry: the spans and rewards of an episode as the package areal-sdk-otel sends them, in OTLP's JSON.

A run sends only the messages that are new. Here each call has its whole history, as the conventions ask.
"""

import time
from collections.abc import Iterator

import orjson

from areal_sdk import ConfigError, Episode
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON
from areal_sdk_traces.exporters import Source


def export(episode: Episode, source: Source, place: Place, book: Book) -> Iterator[JSON]:
    try:
        from areal_sdk_otel import otlp
        from areal_sdk_otel.spans import Teller
    except ImportError:
        raise ConfigError("--to otel needs another package: pip install areal-sdk-otel") from None
    teller = Teller(agent=source.agent, model=source.model, content=True, whole=True)
    trace = teller.tell(episode, split=source.split, dropped="", now_ns=time.time_ns())
    resource = {"service.name": "areal-sdk", "service.instance.id": source.run}
    for signal, pieces in ((otlp.Signal.TRACES, trace.spans), (otlp.Signal.LOGS, trace.events)):
        yield orjson.loads(otlp.body(signal, resource, pieces))
