"""LangSmith: runs, one a row or nested in `child_runs`, with the messages of LangChain or of OpenAI."""

from collections.abc import Iterable, Iterator

from areal_sdk_traces.book import BadRowError, Book, Fate
from areal_sdk_traces.calls import Extra, RecordedCall, conversations_of, read_calls
from areal_sdk_traces.conversation import JSON, Conversation, finite
from areal_sdk_traces.messages import (
    Lost,
    as_context,
    first_of,
    is_cut_off,
    read_answer,
    read_messages,
    read_tools,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, parsed, rows_of, text, word, words


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    extras: dict[str, Extra] = {}
    runs = (run for row in rows for run in _runs(row, book))
    calls = read_calls(runs, lambda run: _read(run, extras, book), book)
    yield from conversations_of("langsmith", calls, book, extras)


def _runs(row: Row, book: Book) -> Iterator[Row]:
    """A run and the runs below it, or the runs of a page of the API."""
    value = row.value
    if not isinstance(value, dict):
        book.write(row.place, Fate.DAMAGED, "the row is not an object")
        return
    inner = value.get("child_runs") or value.get("runs")
    if inner and not isinstance(inner, list):
        book.write(row.place, Fate.PART_LOST, "runs inside that are no list")
    if "run_type" in value or not isinstance(inner, list):
        yield row
    for index, one in enumerate(inner if isinstance(inner, list) else ()):
        yield from _runs(row.part(one, f"run {index}", book), book)


def _read(row: Row, extras: dict[str, Extra], book: Book) -> RecordedCall | None:
    value = mapping(row.value, "the run")
    trace = name_in(value, "trace_id", "id")
    kind = text(value.get("run_type"), "the run_type")
    extra = extras.setdefault(trace, Extra())
    stats = mapping(parsed(value.get("feedback_stats") or {}, "feedback_stats"), "feedback_stats")
    for name, one in stats.items():
        number = finite(mapping(one, "a feedback").get("avg"))
        if number is not None:
            extra.add_score(name, number)
    if kind != "llm":
        book.write(row.place, Fate.NO_MESSAGE, f"a run of type {kind}")
        return None
    if value.get("error"):
        raise BadRowError(f"the call failed: {str(value['error'])[:200]}")
    lost = book.losing(row.place)
    inputs = mapping(parsed(value.get("inputs"), "the inputs"), "the inputs")
    outputs = mapping(parsed(value.get("outputs"), "the outputs"), "the outputs")
    more = mapping(parsed(value.get("extra") or {}, "extra"), "extra")
    metadata = mapping(more.get("metadata") or {}, "the metadata")
    invoked = mapping(more.get("invocation_params") or {}, "the invocation_params")
    asked = inputs.get("messages", inputs.get("prompts", inputs.get("prompt")))
    if asked is None:
        raise BadRowError("no 'messages' in the inputs")
    made = _made(outputs, lost)
    answer = read_answer(_said(made), lost, "the outputs are")
    if is_cut_off(made):
        answer = as_context(answer, lost)
    return RecordedCall(
        trace,
        word(value, "dotted_order", "start_time"),
        read_messages(asked, lost),
        answer,
        row.place,
        tools=read_tools(invoked.get("tools") or inputs.get("tools")),
        user=word(metadata, "user_id", "user"),
        tags=words(value.get("tags")),
        model=word(metadata, "ls_model_name")
        or word(invoked, "model", "model_name")
        or word(inputs, "model"),
    )


def _made(outputs: JSON, lost: Lost) -> object:
    """The generation or the choice that has the answer: of LangChain, of OpenAI's wrapper, or of a function."""
    if isinstance(outputs.get("generations"), list):
        batch = outputs["generations"]
        batch = first_of(batch, lost) if batch and isinstance(batch[0], list) else batch
        if not batch:
            raise BadRowError("no generation in the outputs")
        return mapping(first_of(batch, lost), "a generation")
    if isinstance(outputs.get("choices"), list) and outputs["choices"]:
        return mapping(first_of(outputs["choices"], lost), "a choice")
    for name in ("messages", "message", "output"):
        if name in outputs:
            found = outputs[name]
            return rows_of(found, name)[-1:] if name == "messages" else found
    if "role" in outputs or "content" in outputs:
        return outputs
    raise BadRowError("no answer in the outputs")


def _said(made: object) -> object:
    """The message of a generation or of a choice; anything else is a message itself."""
    if not isinstance(made, dict) or "role" in made or "content" in made:
        return made
    return made.get("message") or made.get("text") or made
