"""Logs of Inspect in JSON: a log with its samples, or one sample a row, as the archives of the format have them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Place
from areal_sdk_traces.conversation import JSON, WEIGHT, Conversation, finite
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.messages import Lost, answer_of, call_of, read_message, read_tools, result_of
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, rows_of, text, word

_ATTACHED = "attachment://"
_CUT_OFF = ("max_tokens", "model_length")
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    for row in rows:
        with book.guarding(row.place):
            value = mapping(row.value, "the row")
            if "eval" not in value:
                yield from _sample(value, row.place, book)
                continue
            about = mapping(value["eval"], "the eval")
            samples = rows_of(value.get("samples") or [], "the samples")
            if not samples:
                raise BadRowError(f"no samples: the log has {word(value, 'status') or 'no status'}")
            for index, given in enumerate(samples):
                part = row.part(given, f"sample {index}", book)
                with book.guarding(part.place):
                    sample = mapping(given, "the sample")
                    yield from _sample(sample, part.place, book, about)


def _sample(
    sample: JSON, place: Place, book: Book, about: JSON | None = None
) -> Iterator[Conversation]:
    about = about or {}
    lost = book.losing(place)
    reading = _Reading(sample, lost)
    graph = Graph(book)
    calls = reading.calls()
    for call in calls:
        _add(graph, call, reading, place)
    if not calls:  # a log without events
        messages = reading.messages(sample.get("messages"))
        if not messages:
            error = sample.get("error")
            told = word(error, "message") if isinstance(error, Mapping) else ""
            raise BadRowError(f"no messages: {told[:200] or 'no error was recorded'}")
        said = [(message, place) for message in messages]
        graph.add_transcript(said, model=word(about, "model"))
    name = word(sample, "uuid") or "/".join(
        (word(about, "eval_id"), name_in(sample, "id"), str(sample.get("epoch", 1)))
    ).strip("/")
    tags = (word(about, "task"),) if word(about, "task") else ()
    scores = _scores(sample.get("scores"), lost)
    task = str(sample.get("id") or "")
    yield from graph.conversations(Origin("inspect", name, tags=tags, task=task, scores=scores))


def _add(graph: Graph, call: JSON, reading: "_Reading", place: Place) -> None:
    prompt = reading.input_of(call)
    output = mapping(call.get("output") or {}, "the output")
    choices = rows_of(output.get("choices") or [], "the choices")
    if call.get("error") or not choices:
        reading.lost(f"a call without an answer: {str(call.get('error'))[:200]}")
        return
    choice = mapping(choices[0], "the choice")
    answers = reading.messages([choice.get("message")])
    if len(answers) != 1 or answers[0]["role"] != "assistant":
        raise BadRowError("the answer is no message of the assistant")
    is_cut_off = choice.get("stop_reason") in _CUT_OFF or output.get("error")
    if is_cut_off:
        answers[0][WEIGHT] = 0
    graph.add(
        [*prompt, *answers] if is_cut_off else prompt,
        None if is_cut_off else answers[0],
        places=[place],
        tools=_tools(call.get("tools")),
        model=word(call, "model"),
    )


class _Reading:
    """A sample whose parts stand elsewhere: long texts as attachments, repeated messages in a pool."""

    def __init__(self, sample: JSON, lost: Lost) -> None:
        self.lost = lost
        self._events = rows_of(sample.get("events") or [], "the events")
        self._attached = mapping(sample.get("attachments") or {}, "the attachments")
        pools = mapping(sample.get("events_data") or {}, "the events_data")
        self._pool = rows_of(pools.get("messages") or [], "the pool of messages")

    def calls(self) -> list[JSON]:
        """The calls of the policy. Those of a scorer and of other roles are lost, and told."""
        judging = set[str]()
        found = []
        for given in self._events:
            event = mapping(given, "an event")
            if event.get("event") == "span_begin":
                if event.get("type") in ("scorer", "scorers") or event.get("parent_id") in judging:
                    judging.add(word(event, "id"))
            elif event.get("event") == "model" and not event.get("pending"):
                role = word(event, "role")
                if role or event.get("span_id") in judging:
                    self.lost(f"a call of {f'the role {role!r}' if role else 'a scorer'}")
                else:
                    found.append(event)
        return found

    def input_of(self, call: JSON) -> list[Message]:
        given = rows_of(call.get("input") or [], "the input")
        if refs := call.get("input_refs"):
            given = []
            for ref in rows_of(refs, "the input_refs"):
                match rows_of(ref, "a reference"):
                    case [int(start), int(end)] if 0 <= start <= end <= len(self._pool):
                        given += self._pool[start:end]
                    case _:
                        raise BadRowError(f"the messages {ref} are not in the pool")
        return self.messages(given)

    def messages(self, given: object) -> list[Message]:
        said: list[Message] = []
        for index, one in enumerate(rows_of(given or [], "the messages")):
            try:
                said += _message(mapping(self._whole(one), "a message"), self.lost)
            except BadRowError as exc:
                raise BadRowError(f"message {index}: {exc}") from None
        return said

    def _whole(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._whole(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._whole(one) for one in value]
        if isinstance(value, str) and value.startswith(_ATTACHED):
            name = value.removeprefix(_ATTACHED)
            return text(self._attached.get(name), f"the attachment {name}")
        return value


def _message(message: JSON, lost: Lost) -> list[Message]:
    beside = mapping(message.get("metadata") or {}, "the metadata")
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        error = mapping(message.get("error") or {}, "the error")
        call = text(message.get("tool_call_id"), "the tool_call_id")
        # The model is told the error in place of a result.
        return [result_of(call, word(error, "message") or content, lost)]
    if role != "assistant":
        role = word(beside, "role") or role
        return read_message({"role": role, "content": content}, lost)
    thoughts = []
    if isinstance(content, list):
        thoughts = [word(one, "reasoning") for one in content if _is_thought(one)]
        content = [one for one in content if not _is_thought(one)]
    (said,) = read_message({"role": role, "content": content if content is not None else ""}, lost)
    strange = mapping(beside.get("arguments") or {}, "the arguments")
    calls = []
    for given in rows_of(message.get("tool_calls") or [], "the tool_calls"):
        made = mapping(given, "a tool call")
        call = text(made.get("id"), "the id of a tool call")
        name = text(made.get("function"), "the function of a tool call")
        calls.append(call_of(call, name, strange.get(call, made.get("arguments"))))
    return [answer_of(said["content"] or "", calls, "\n".join(filter(None, thoughts)))]


def _is_thought(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "reasoning"


def _tools(given: object) -> list[JSON]:
    """Tools in OpenAI's shape. Our own exporter keeps the definition beside what the format has of it."""
    found = []
    for one in rows_of(given or [], "the tools"):
        options = mapping(mapping(one, "a tool").get("options") or {}, "the options")
        found.append(options if isinstance(options.get("function"), dict) else one)
    return read_tools([_without_nulls(one) for one in found])


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _scores(given: object, lost: Lost) -> dict[str, float]:
    found = {}
    for name, one in mapping(given or {}, "the scores").items():
        value = mapping(one, "a score").get("value")
        parts = value if isinstance(value, dict) else {"": value}
        for key, part in parts.items():
            number = _GRADES.get(part) if isinstance(part, str) else finite(part)
            if number is None:
                lost(f"the score {name!r}, which is {part!r}")
            else:
                found[f"{name}/{key}" if key else name] = number
    return found
