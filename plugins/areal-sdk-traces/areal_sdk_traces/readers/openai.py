"""OpenAI: logged requests with their responses (chat and Responses), batches, and rows of fine-tuning."""

from collections.abc import Iterable, Iterator

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Fate
from areal_sdk_traces.calls import RecordedCall, conversations_of
from areal_sdk_traces.conversation import JSON, Conversation
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.items import messages_of
from areal_sdk_traces.messages import (
    Lost,
    as_context,
    first_of,
    is_cut_off,
    read_message,
    read_messages,
    read_tools,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, rows_of, text, word, words


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    calls: list[RecordedCall] = []
    asked: dict[str, list[Row]] = {}
    replies: dict[str, list[Row]] = {}
    for row in rows:
        with book.guarding(row.place):
            value = mapping(row.value, "the row")
            if "custom_id" in value:
                half = replies if "response" in value or "error" in value else asked
                half.setdefault(name_in(value, "custom_id"), []).append(row)
            elif "preferred_output" in value:
                yield from _preference(row, value, book)
            elif "messages" in value and "choices" not in value and "response" not in value:
                yield from _tuning(row, value, book)
            else:
                request, response = value.get("request", value), value.get("response", value)
                calls.append(_call(row, request, response, book))
    for name in asked | replies:
        calls += _batch_calls(name, asked.get(name, []), replies.get(name, []), book)
    yield from conversations_of("openai", calls, book)


def _batch_calls(
    name: str, asked: list[Row], replies: list[Row], book: Book
) -> Iterator[RecordedCall]:
    """The call of a `custom_id`, if it is that of one request and one reply."""
    asked, replies = _distinct(asked, book), _distinct(replies, book)
    try:
        if len(asked) > 1 or len(replies) > 1:
            raise BadRowError(
                f"several requests or replies have the custom_id {name!r}: import one batch at a time"
            )
        if not replies:
            raise BadRowError(f"the request {name!r} has no reply")
        if not asked:
            raise BadRowError(f"a reply to {name!r}, whose request is not here")
        yield _batch_call(asked[0], replies[0], book)
        book.used([asked[0].place])
    except BadRowError as exc:
        for row in (*asked, *replies):
            book.write(row.place, Fate.DAMAGED, str(exc))


def _distinct(rows: list[Row], book: Book) -> list[Row]:
    """The rows without those that repeat an earlier one."""
    found: list[Row] = []
    for row in rows:
        if any(row.value == one.value for one in found):
            book.write(row.place, Fate.DUPLICATE, "the same row as an earlier one")
        else:
            found.append(row)
    return found


def _batch_call(asked: Row, reply: Row, book: Book) -> RecordedCall:
    if reply.value.get("error"):
        raise BadRowError(f"the request failed: {str(reply.value['error'])[:200]}")
    response = mapping(reply.value.get("response"), "the response")
    if response.get("status_code", 200) != 200:
        raise BadRowError(f"the request failed with status {response['status_code']}")
    return _call(reply, asked.value.get("body"), response.get("body"), book)


def _call(row: Row, request: object, response: object, book: Book) -> RecordedCall:
    lost: Lost = lambda what: book.write(row.place, Fate.PART_LOST, what)  # noqa: E731
    asked = mapping(request, "the request")
    said = mapping(response, "the response")
    if said.get("error"):
        raise BadRowError(f"the request failed: {str(said['error'])[:200]}")
    if "output" in said:
        prompt, answer = _responses_call(asked, said, lost, row)
        is_whole = said.get("status") != "incomplete"
    else:
        choices = rows_of(said.get("choices"), "the choices")
        if not choices:
            raise BadRowError("no choices in the response")
        choice = mapping(first_of(choices, lost), "a choice")
        is_whole = not is_cut_off({"finish_reason": choice.get("finish_reason")})
        prompt = read_messages(rows_of(asked.get("messages"), "the messages"), lost)
        answer = read_message(choice.get("message"), lost, role="assistant")[0]
    if not is_whole:
        answer = as_context(answer, lost)
    metadata = mapping(asked.get("metadata") or {}, "the metadata")
    user = word(asked, "user", "safety_identifier")
    created = said.get("created", said.get("created_at", 0))
    return RecordedCall(
        word(metadata, "session_id", "conversation_id", "thread_id"),
        float(created) if isinstance(created, (int, float)) else 0.0,
        prompt,
        answer,
        row.place,
        tools=read_tools(asked.get("tools")),
        user=user,
        tags=words(metadata),
        model=word(said, "model") or word(asked, "model"),
    )


def _responses_call(asked: JSON, said: JSON, lost: Lost, row: Row) -> tuple[list[Message], Message]:
    if asked.get("previous_response_id"):
        raise BadRowError("its history is at OpenAI (previous_response_id): log the whole input")
    prompt: list[Message] = []
    if isinstance(asked.get("instructions"), str):
        prompt.append({"role": "system", "content": asked["instructions"]})
    prompt += messages_of(asked.get("input"), lost, row.place)
    answers = messages_of(said["output"], lost, row.place)
    if len(answers) != 1 or answers[0]["role"] != "assistant":
        raise BadRowError("the output is not one answer of the assistant")
    return prompt, answers[0]


def _tuning(row: Row, value: JSON, book: Book) -> Iterator[Conversation]:
    lost = book.losing(row.place)
    messages = read_messages(rows_of(value["messages"], "the messages"), lost)
    if not messages:
        raise BadRowError("no messages")
    graph = Graph(book)
    tools = read_tools(value.get("tools"))
    graph.add_transcript([(one, row.place) for one in messages], tools=tools)
    yield from graph.conversations(Origin("openai", word(value, "id")))


def _preference(row: Row, value: JSON, book: Book) -> Iterator[Conversation]:
    """Two conversations of a pair, with the scores 1 and 0."""
    lost = book.losing(row.place)
    asked = mapping(value.get("input"), "the input")
    prompt = read_messages(rows_of(asked.get("messages"), "the messages"), lost)
    graph = Graph(book)
    for name, score in (("preferred_output", 1.0), ("non_preferred_output", 0.0)):
        answer, *more = read_messages(rows_of(value.get(name), name), lost) or [{}]
        if more or text(answer.get("role"), f"the role of {name}") != "assistant":
            raise BadRowError(f"{name} is no answer of the assistant")
        scores = {"reward": score}
        graph.add(
            prompt, answer, places=[row.place], tools=read_tools(asked.get("tools")), scores=scores
        )
    yield from graph.conversations(Origin("openai", ""))
