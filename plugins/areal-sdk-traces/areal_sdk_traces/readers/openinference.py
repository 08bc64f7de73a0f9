"""OpenInference: attributes such as `llm.input_messages.0.message.content`, flat or nested, in OTLP or Phoenix's spans."""

from collections.abc import Iterable, Iterator
from typing import Any

from areal_sdk_traces.book import BadRowError, Book, Fate
from areal_sdk_traces.calls import RecordedCall, conversations_of, read_calls
from areal_sdk_traces.conversation import JSON, Conversation
from areal_sdk_traces.messages import as_context, is_cut_off, read_message, read_tools
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, parsed, parsed_or_text, word, words
from areal_sdk_traces.spans import Span, read_spans


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    calls = read_calls(read_spans(rows, book), lambda span: _read(span, book), book)
    yield from conversations_of("openinference", calls, book)


def _read(span: Span, book: Book) -> RecordedCall | None:
    kept = _nested(span.attributes)
    kind = str(_at(kept, "openinference", "span", "kind") or "")
    if kind != "LLM":
        book.write(span.place, Fate.NO_MESSAGE, f"a span of kind {kind or 'none'}")
        return None
    llm = mapping(kept.get("llm"), "llm")
    lost = book.losing(span.place)
    prompt = [
        message for one in _messages(llm, "input_messages") for message in read_message(one, lost)
    ]
    if not prompt:
        raise BadRowError("no 'llm.input_messages'")
    said = _messages(llm, "output_messages")
    if not said:
        raise BadRowError("no 'llm.output_messages': the answer is missing")
    answer = read_message({"role": "assistant", **said[0]}, lost)[0]
    whole = parsed_or_text(_at(kept, "output", "value"))
    if is_cut_off([whole, said[0], {"finish_reason": llm.get("finish_reason")}]):
        answer = as_context(answer, lost)
    tools = [_at(one, "tool", "json_schema") for one in _listed(llm.get("tools"))]
    return RecordedCall(
        str(_at(kept, "session", "id") or span.trace),
        span.began,
        prompt,
        answer,
        span.place,
        tools=read_tools([parsed(tool, "tool.json_schema") for tool in tools if tool]),
        user=str(_at(kept, "user", "id") or ""),
        tags=words(_at(kept, "tag", "tags")),
        model=word(llm, "model_name"),
    )


def _messages(llm: JSON, name: str) -> list[JSON]:
    """The messages in OpenAI's shape."""
    found = []
    for one in _listed(llm.get(name)):
        message = dict(mapping(mapping(one, name).get("message"), f"{name}.message"))
        if "contents" in message:
            parts = [
                mapping(part, "contents").get("message_content", part)
                for part in _listed(message["contents"])
            ]
            message["content"] = parts
        message["tool_calls"] = [
            mapping(call, "tool_calls").get("tool_call", call)
            for call in _listed(message.get("tool_calls"))
        ]
        found.append(message)
    return found


def _nested(attributes: JSON) -> JSON:
    """Dotted keys as objects. Numbers among the keys stay keys, which `_listed` orders."""
    root: JSON = {}
    for key, value in attributes.items():
        at = root
        *path, last = key.split(".")
        for part in path:
            at = at.setdefault(part, {}) if isinstance(at.get(part, {}), dict) else {}
        if isinstance(value, dict) and isinstance(at.get(last), dict):
            at[last] |= value
        else:
            at[last] = _nested(value) if isinstance(value, dict) else value
    return root


def _listed(value: Any) -> list[Any]:
    """The values of a list, or of an object whose keys are numbers."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    if not all(key.isdecimal() for key in value):
        raise BadRowError(f"the keys {sorted(value)} are not all numbers")
    return [value[key] for key in sorted(value, key=int)]


def _at(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
