"""Codex: rollout files of `~/.codex/sessions`, one session a file, an item a line."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from areal_sdk import Message
from areal_sdk_traces.book import Book, Fate, Place
from areal_sdk_traces.conversation import JSON, Conversation, Link, Relation, is_learnt
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.items import SAID, ItemReader, messages_of
from areal_sdk_traces.messages import Lost
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, rows_of, word


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    for _, of_file in groupby(rows, key=lambda row: row.place.file):
        yield from _session(of_file, book)


def _session(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    name, model, system = "", "", list[tuple[Message, Place]]()
    contexts = [ItemReader(lambda what: None)]
    for row in rows:
        place = row.place
        lost = book.losing(place)
        with book.guarding(place):
            value = mapping(row.value, "the row")
            kind = word(value, "type")
            if kind == "session_meta" or (not kind and "instructions" in value):
                meta = mapping(value.get("payload", value), "the payload")
                name = word(meta, "id") or name
                system = _system(meta, place)
                book.used([place])
            elif kind == "turn_context":
                model = word(mapping(value.get("payload"), "the payload"), "model") or model
                book.used([place])
            elif kind == "compacted":
                payload = mapping(value.get("payload"), "the payload")
                contexts.append(_compacted(payload, place, lost))
                book.used([place])
            elif kind == "event_msg" or word(value, "record_type"):
                book.write(place, Fate.NO_MESSAGE, "an event, which repeats items or counts tokens")
            else:
                item = (
                    mapping(value.get("payload"), "the payload")
                    if kind == "response_item"
                    else value
                )
                if word(item, "type") not in SAID and "role" not in item:
                    book.write(
                        place, Fate.NO_MESSAGE, f"an item of type {word(item, 'type') or kind!r}"
                    )
                    continue
                contexts[-1].lost = lost
                contexts[-1].add(item, place)
                book.used([place])
    previous = ""
    for number, context in enumerate(contexts):
        said = context.flush()
        if number and not any(is_learnt(message) for message, _ in said):
            for _, place in said:
                book.write(place, Fate.NO_MESSAGE, "after a compaction, and nothing was answered")
            continue
        graph = Graph(book)
        graph.add_transcript([*system, *said], model=model)
        trace = f"{name}~{number}" if name and number else name
        for one in graph.conversations(Origin("codex", trace)):
            link = Link(previous, Relation.COMPACTION) if previous else one.link
            previous = one.id
            yield replace(one, link=link)


def _system(meta: JSON, place: Place) -> list[tuple[Message, Place]]:
    base = meta.get("base_instructions")
    text = word(base, "text") if isinstance(base, dict) else word(meta, "instructions")
    return [({"role": "system", "content": text}, place)] if text else []


def _compacted(payload: JSON, place: Place, lost: Lost) -> ItemReader:
    """A context that goes on from a summary. Its answers were sampled before, so they are context."""
    context = ItemReader(lost)
    history = payload.get("replacement_history")
    if isinstance(history, list):
        for message in messages_of(rows_of(history, "replacement_history"), lost, place):
            if message["role"] == "assistant":
                message["weight"] = 0
            context.messages.append((message, place))
    else:
        summary = {"role": "user", "content": word(payload, "message")}
        context.messages.append((summary, place))
    return context
