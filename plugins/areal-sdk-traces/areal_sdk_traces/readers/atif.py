"""ATIF, the trajectory format of Harbor, versions 1.0 to 1.8: a document a trajectory, subagents inside."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Place
from areal_sdk_traces.conversation import (
    JSON,
    WEIGHT,
    Conversation,
    Link,
    Relation,
    finite,
)
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.messages import (
    Lost,
    answer_of,
    as_context,
    call_of,
    is_cut_off,
    read_message,
    read_tools,
    result_of,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, rows_of, text, word, words

_ROLES = {"system": "system", "user": "user"}


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    for row in rows:
        with book.guarding(row.place):
            yield from _trajectory(mapping(row.value, "the trajectory"), row.place, book)


def _trajectory(value: JSON, place: Place, book: Book, parent: str = "") -> Iterator[Conversation]:
    version = text(value.get("schema_version"), "the schema_version")
    if not version.startswith("ATIF-v1."):
        raise BadRowError(f"the schema_version is {version!r}")
    lost = book.losing(place)
    agent = mapping(value.get("agent"), "the agent")
    name = word(value, "trajectory_id", "session_id")
    said: list[Message] = []
    for index, step in enumerate(rows_of(value.get("steps"), "the steps")):
        try:
            said += _step(mapping(step, "it"), lost)
        except BadRowError as exc:
            raise BadRowError(f"step {index + 1}: {exc}") from None
    extra = mapping(value.get("extra") or {}, "extra")
    if not said:
        raise BadRowError("no steps")
    reward = finite(extra.get("reward"))
    graph = Graph(book)
    graph.add_transcript(
        [(message, place) for message in said],
        tools=read_tools(agent.get("tool_definitions")),
        model=word(agent, "model_name"),
    )
    origin = Origin(
        "atif",
        name,
        user=word(extra, "user"),
        tags=words(extra.get("tags")),
        scores={} if reward is None else {"reward": reward},
    )
    link = Link(parent, Relation.SUBAGENT) if parent else _link(extra.get("tree"))
    found = graph.conversations(origin)
    for one in found:
        yield replace(one, link=link or one.link)
    for index, inner in enumerate(
        rows_of(value.get("subagent_trajectories") or [], "the subagents")
    ):
        part = Place(place.file, place.line, f"{place.part} subagent {index}".strip())
        book.saw(part)
        with book.guarding(part):
            inside = mapping(inner, "the subagent")
            yield from _trajectory(inside, part, book, parent=found[0].id if found else "")


def _link(tree: object) -> Link | None:
    """The place in the tree of an episode, which our own exporter writes."""
    if tree is None:
        return None
    given = mapping(tree, "the tree")
    num_shared = given.get("num_shared")
    if given.get("relation") not in [*Relation] or not isinstance(num_shared, int):
        raise BadRowError(f"the tree is {given}")
    return Link(text(given.get("parent"), "the parent"), Relation(given["relation"]), num_shared)


def _step(step: JSON, lost: Lost) -> list[Message]:
    source = text(step.get("source"), "the source")
    if "message" not in step:
        raise BadRowError("no 'message'")
    observed = mapping(step.get("observation") or {}, "the observation")
    results = [
        mapping(one, "a result") for one in rows_of(observed.get("results") or [], "the results")
    ]
    extra = mapping(step.get("extra") or {}, "extra")
    if source == "system" and results and not step["message"]:
        said = []  # results that belong to no step of the agent
    elif source in _ROLES:
        role = word(extra, "role") or _ROLES[source]
        said = read_message({"role": role, "content": step["message"]}, lost)
    elif source == "agent":
        said = [_answer(step, lost)]
    else:
        raise BadRowError(f"the source is {source!r}")
    for result in results:
        if result.get("subagent_trajectory_ref") and result.get("content") is None:
            result = {**result, "content": ""}
        beside = mapping(result.get("extra") or {}, "extra")
        if call_id := word(result, "source_call_id") or word(beside, "tool_call_id"):
            said.append(result_of(call_id, result.get("content"), lost))
        else:  # an action outside the calling of tools; its result is what the agent reads next
            said += read_message({"role": "user", "content": result.get("content") or ""}, lost)
    return said


def _answer(step: JSON, lost: Lost) -> Message:
    (message,) = read_message({"role": "assistant", "content": step["message"]}, lost)
    calls = []
    for given in rows_of(step.get("tool_calls") or [], "the tool_calls"):
        call = mapping(given, "a tool call")
        beside = mapping(call.get("extra") or {}, "extra")
        arguments = mapping(call.get("arguments"), "the arguments")
        arguments = beside.get("arguments", arguments)
        name = text(call.get("function_name"), "the function_name")
        calls.append(call_of(text(call.get("tool_call_id"), "the tool_call_id"), name, arguments))
    message = answer_of(message["content"] or "", calls, word(step, "reasoning_content"))
    if is_cut_off(step.get("extra")):
        message = as_context(message, lost)
    if step.get("is_copied_context") or step.get("llm_call_count") == 0:
        message[WEIGHT] = 0
    return message
