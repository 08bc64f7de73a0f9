"""Claude Code: session files of `~/.claude/projects`. Lines hang on their parents by `parentUuid`.

One answer of the model is several lines with the same `message.id`, one for each block. Results of parallel calls hang
on different lines of it, which is no fork. Messages also hang on lines that say nothing: the notes of a hook, the border
of a compaction, an error of the API.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Fate, Place
from areal_sdk_traces.conversation import JSON, Conversation, Link, Relation
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.messages import as_context, is_cut_off, read_message
from areal_sdk_traces.rows import Row
from areal_sdk_traces.shapes import mapping, name_in, rows_of, text, word

_STOPPED = "[Request interrupted by user]"
"""The words of Claude Code after an answer that the user stopped in the middle."""


@dataclass(slots=True)
class _Turn:
    """Lines that are one step of the conversation."""

    role: str
    parent: str
    """The uuid of the line before; empty at a beginning."""
    session: str
    blocks: list[JSON] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    model: str = ""
    agent: str = ""
    is_summary: bool = False
    is_result: bool = False
    is_cut_off: bool = False
    """The answer met a limit, or the user stopped it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The lines so far."""

    turns: dict[str, _Turn] = field(default_factory=dict)
    """The turn of each line, by the line's uuid."""
    silent: dict[str, str] = field(default_factory=dict)
    """The uuid of the message above each line that says nothing; empty at a beginning."""
    answers: dict[str, _Turn] = field(default_factory=dict)
    results: dict[int, _Turn] = field(default_factory=dict)

    def parent(self, line: JSON) -> str:
        """The uuid of the message that the line follows."""
        parent = word(line, "parentUuid")
        return self.silent.get(parent, parent) if parent else ""


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    seen = _Seen()
    for row in rows:
        with book.guarding(row.place):
            _take(row, seen, book)
    yield from _conversations(seen.turns, book)


def _take(row: Row, seen: _Seen, book: Book) -> None:
    value = mapping(row.value, "the line")
    kind = word(value, "type")
    if kind not in ("user", "assistant"):
        if not kind:
            raise BadRowError("no 'type'")
        seen.silent[word(value, "uuid")] = seen.parent(value)
        book.write(row.place, Fate.NO_MESSAGE, f"a line of type {kind!r}")
        return
    if value.get("isApiErrorMessage"):
        seen.silent[word(value, "uuid")] = seen.parent(value)
        book.write(row.place, Fate.NO_MESSAGE, "an error of the API, which no model said")
        return
    turns, answers, results = seen.turns, seen.answers, seen.results
    uuid, session = name_in(value, "uuid"), name_in(value, "sessionId")
    message = mapping(value.get("message"), "the message")
    if uuid in turns:
        book.write(row.place, Fate.DUPLICATE, "the line of a session that was resumed")
        return
    content = message.get("content")
    blocks = (
        [{"type": "text", "text": content}]
        if isinstance(content, str)
        else rows_of(content, "the content")
    )
    # Reads the blocks now, so that a damaged line is named itself and leaves the others whole.
    read_message({"role": kind, "content": blocks}, lambda what: None)
    parent = seen.parent(value)
    if parent and parent not in turns:
        raise BadRowError(f"its parent {parent!r} is not here, or is damaged")
    above = turns.get(parent)
    is_result = any(mapping(one, "a block").get("type") == "tool_result" for one in blocks)
    if kind == "assistant":
        turn = answers.setdefault(
            text(message.get("id"), "the message's id"), _Turn(kind, parent, session)
        )
        turn.model = word(message, "model") or turn.model
        turn.is_cut_off |= is_cut_off({"stop_reason": message.get("stop_reason")})
    elif is_result and above is not None and above.is_result:
        turn = above
    elif is_result and above is not None:
        turn = results.setdefault(id(above), _Turn(kind, parent, session, is_result=True))
    else:
        turn = _Turn(kind, parent, session)
        if above is not None and any(one.get("text") == _STOPPED for one in blocks):
            above.is_cut_off |= above.role == "assistant"
    turn.blocks += blocks
    turn.places.append(row.place)
    turn.agent = word(value, "agentId") or ("sidechain" if value.get("isSidechain") else "")
    turn.is_summary = turn.is_summary or bool(value.get("isCompactSummary"))
    turns[uuid] = turn
    book.used([row.place])


def _conversations(turns: dict[str, _Turn], book: Book) -> Iterator[Conversation]:
    """The turns from each beginning; every agent of a session is a tree of its own."""
    graphs: dict[tuple[str, str], Graph] = {}
    paths: dict[int, list[Message]] = {}
    for turn in {id(one): one for one in turns.values()}.values():
        before = paths.get(id(turns[turn.parent]), []) if turn.parent else []
        lost = book.losing(turn.places[0])
        said = read_message({"role": turn.role, "content": turn.blocks}, lost)
        part = turn.agent if not turn.is_summary else f"summary {turn.places[0].line}"
        graph = graphs.setdefault((turn.session, _root_part(turn, turns, part)), Graph(book))
        for message in said:
            if turn.is_cut_off:
                message = as_context(message, lost)
            is_answer = message["role"] == "assistant" and not turn.is_cut_off
            answer = message if is_answer else None
            prompt = before if answer else [*before, message]
            graph.add(prompt, answer, places=turn.places, model=turn.model)
            before = [*before, message]
        paths[id(turn)] = before
    first: dict[str, str] = {}
    for (session, part), graph in graphs.items():
        name = f"{session}/{part}" if part else session
        for one in graph.conversations(Origin("claude-code", name)):
            yield _linked(one, first.get(session, ""), part)
            first.setdefault(session, one.id)


def _root_part(turn: _Turn, turns: dict[str, _Turn], part: str) -> str:
    """The agent, or the summary that the turn's history begins with."""
    while turn.parent:
        turn = turns[turn.parent]
    return f"summary {turn.places[0].line}" if turn.is_summary else part


def _linked(one: Conversation, first: str, part: str) -> Conversation:
    if (one.link is not None and one.link.relation is Relation.FORK) or not first or not part:
        return one
    relation = Relation.COMPACTION if part.startswith("summary") else Relation.SUBAGENT
    return replace(one, link=Link(first, relation))
