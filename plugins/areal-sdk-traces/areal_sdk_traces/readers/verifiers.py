"""verifiers: episodes of `traces.jsonl` (a graph of messages a trace), and rows of prompts and completions before that."""

from collections.abc import Iterable, Iterator

from areal_sdk_traces.book import BadRowError, Book
from areal_sdk_traces.conversation import CUT_OFF, JSON, WEIGHT, Conversation, finite
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.messages import (
    as_context,
    is_cut_off,
    read_message,
    read_messages,
    read_tools,
)
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, rows_of, word


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    for row in rows:
        with book.guarding(row.place):
            value = mapping(row.value, "the row")
            if "traces" in value:
                traces = rows_of(value["traces"], "the traces")
                if not traces:
                    raise BadRowError(f"no trace: {_errors(value)}")
                for index, trace in enumerate(traces):
                    part = row if len(traces) == 1 else row.part(trace, f"trace {index}", book)
                    with book.guarding(part.place):
                        yield from _trace(Row(trace, part.place), book)
            elif "nodes" in value:
                yield from _trace(row, book)
            else:
                yield from _completion(row, value, book)


def _trace(row: Row, book: Book) -> Iterator[Conversation]:
    trace = mapping(row.value, "the trace")
    nodes = rows_of(trace.get("nodes"), "the nodes")
    if not nodes:
        raise BadRowError(f"no nodes: {_errors(trace)}")
    lost = book.losing(row.place)
    graph = Graph(book)
    paths: list[list[JSON]] = []
    tools: list[list[JSON]] = []
    """The tools of each node: those of its root."""
    cut_off = _cut_off(trace)
    for index, given in enumerate(nodes):
        node = mapping(given, f"node {index}")
        parent = node.get("parent")
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < index):
            raise BadRowError(f"the parent of node {index} is {parent!r}")
        before = [] if parent is None else paths[parent]
        try:
            said = read_message(node.get("message"), lost)
        except BadRowError as exc:
            raise BadRowError(f"node {index}: {exc}") from None
        paths.append([*before, *said])
        above = [] if parent is None else tools[parent]
        tools.append(read_tools(node.get("tools")) or above)
        told = tools[-1] or read_tools(trace.get("tools"))
        if index in cut_off:
            lost(CUT_OFF)
        is_answer = node.get("sampled") is True and index not in cut_off
        answer = said[-1] if is_answer else None
        prompt = paths[-1][:-1] if answer is not None else paths[-1]
        graph.add(prompt, answer, places=[row.place], tools=told)
    task = mapping(trace.get("task") or {}, "the task")
    name = name_in(trace, "id")
    scores, total = dict[str, float](), []
    for reward, one in mapping(trace.get("rewards") or {}, "the rewards").items():
        score = finite(mapping(one, "a reward").get("score")) if one is not None else None
        if score is not None:
            scores[reward] = score
            total.append(score * (finite(one.get("weight", 1.0)) or 0.0))
    if total:
        scores["reward"] = sum(total)
    yield from graph.conversations(
        Origin(
            "verifiers",
            name,
            tags=(word(task, "type"),) if word(task, "type") else (),
            scores=scores,
        )
    )


def _cut_off(trace: JSON) -> set[object]:
    """The nodes whose answers have no end."""
    calls = [mapping(one, "a call") for one in rows_of(trace.get("calls") or [], "the calls")]
    return {
        call.get("node")
        for call in calls
        if is_cut_off({"finish_reason": call.get("finish_reason")}) or call.get("error") is not None
    }


def _completion(row: Row, value: JSON, book: Book) -> Iterator[Conversation]:
    lost = book.losing(row.place)
    if "prompt" not in value or "completion" not in value:
        raise BadRowError("neither 'traces' nor 'prompt' and 'completion'")
    messages = read_messages(value["prompt"], lost)
    graph = Graph(book)
    tools = read_tools(value.get("tools"))
    said = read_messages(value["completion"], lost, role="assistant")
    if not said:
        raise BadRowError("an empty completion")
    if value.get("is_truncated") is True and said[-1]["role"] == "assistant":
        said[-1] = as_context(said[-1], lost)
    for message in said:
        is_answer = message["role"] == "assistant" and message.get(WEIGHT) != 0
        answer = message if is_answer else None
        graph.add(
            messages if answer else [*messages, message], answer, places=[row.place], tools=tools
        )
        messages = [*messages, message]
    reward = finite(value.get("reward"))
    name = name_in(value, "id") if "id" in value else ""
    scores = {} if reward is None else {"reward": reward}
    tags = (word(value, "task"),) if word(value, "task") else ()
    yield from graph.conversations(Origin("verifiers", name, tags=tags, scores=scores))


def _errors(value: JSON) -> str:
    errors = value.get("errors")
    return str(errors)[:200] if errors else "no error was recorded"
