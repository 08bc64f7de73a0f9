"""Claude Code: session files of `~/.claude/projects`. Lines hang on their parents by `parentUuid`.

One answer of the model is several lines with the same `message.id`, one for each block. Results of parallel calls hang
on different lines of it, which is no fork. Lines that no model read, such as the duration of a turn, stand between a line
and its parent. A session that was resumed goes on in another file, which may be read before the first one.
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


@dataclass(slots=True, eq=False)
class _Turn:
    """Lines that are one step of the conversation."""

    role: str
    above: "_Turn | None"
    """The turn before; None at a beginning."""
    session: str
    blocks: list[JSON] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    model: str = ""
    agent: str = ""
    is_summary: bool = False
    is_result: bool = False
    is_cut_off: bool = False
    """The answer met a limit, or the user stopped it."""
    part: str = ""
    """The agent, or the summary, that the turn's history belongs to."""
    said: list[Message] = field(default_factory=list)
    node: int | None = None
    """The last message of the turn in the graph of its part."""

    def history(self) -> list[Message]:
        """All messages up to the end of the turn."""
        turns, at = list["_Turn"](), self
        while at.above is not None:
            turns.append(at)
            at = at.above
        return [message for turn in (at, *reversed(turns)) for message in turn.said]


def read(rows: Iterable[Row], book: Book) -> Iterator[Conversation]:
    lines = _Lines(book)
    for row in rows:
        lines.take(row)
    lines.close()
    yield from _conversations(lines.turns, book)


class _Lines:
    """Collects lines. One whose parent is not here yet waits for it."""

    def __init__(self, book: Book) -> None:
        self.turns: dict[_Turn, None] = {}
        """The turns, each after the one above it."""
        self._book = book
        self._turn_of: dict[str, _Turn | None] = {}
        """The turn of a line, or of the nearest line above it that has one, by the line's uuid."""
        self._answers: dict[str, _Turn] = {}
        self._results: dict[_Turn, _Turn] = {}
        self._waiting: dict[str, list[Row]] = {}

    def take(self, row: Row) -> None:
        """Take one line, and then those that waited for it."""
        ready = [row]
        while ready:
            one = ready.pop()
            with self._book.guarding(one.place):
                uuid = self._take(one)
                ready += self._waiting.pop(uuid, ())[::-1]

    def close(self) -> None:
        """Enter the lines whose parent never came. What hangs on them waits too."""
        for parent, rows in self._waiting.items():
            for row in rows:
                fate, reason = _unsaid(row.value) or (
                    Fate.DAMAGED,
                    f"its parent {parent!r} is not here, or is damaged",
                )
                self._book.write(row.place, fate, reason)

    def _take(self, row: Row) -> str:
        """The uuid of the line, under which others hang on it; empty if none can."""
        value = mapping(row.value, "the line")
        kind, uuid, parent = (word(value, name) for name in ("type", "uuid", "parentUuid"))
        if not kind:
            raise BadRowError("no 'type'")
        unsaid = _unsaid(value)
        if not unsaid:
            uuid = name_in(value, "uuid")
        if uuid in self._turn_of:
            what = Fate.DUPLICATE, "the line of a session that was resumed"
            self._book.write(row.place, *(unsaid or what))
            return ""
        if parent and parent not in self._turn_of:
            self._waiting.setdefault(parent, []).append(row)
            return ""
        above = self._turn_of.get(parent)
        turn = above if unsaid else self._turn(value, kind, above, row.place)
        if unsaid:
            self._book.write(row.place, *unsaid)
        if uuid:
            self._turn_of[uuid] = turn
        return uuid

    def _turn(self, value: JSON, kind: str, above: _Turn | None, place: Place) -> _Turn:
        session = name_in(value, "sessionId")
        message = mapping(value.get("message"), "the message")
        content = message.get("content")
        blocks = (
            [{"type": "text", "text": content}]
            if isinstance(content, str)
            else rows_of(content, "the content")
        )
        # Reads the blocks now, so that a damaged line is named itself and leaves the others whole.
        read_message({"role": kind, "content": blocks}, lambda what: None)
        is_result = any(mapping(one, "a block").get("type") == "tool_result" for one in blocks)
        if kind == "assistant":
            name = text(message.get("id"), "the message's id")
            turn = self._answers.setdefault(name, _Turn(kind, above, session))
            turn.model = word(message, "model") or turn.model
            turn.is_cut_off |= is_cut_off({"stop_reason": message.get("stop_reason")})
        elif is_result and above is not None and above.is_result:
            turn = above
        elif is_result and above is not None:
            turn = self._results.setdefault(above, _Turn(kind, above, session, is_result=True))
        else:
            turn = _Turn(kind, above, session)
            if above is not None and any(one.get("text") == _STOPPED for one in blocks):
                above.is_cut_off |= above.role == "assistant"
        turn.blocks += blocks
        turn.places.append(place)
        turn.agent = word(value, "agentId") or ("sidechain" if value.get("isSidechain") else "")
        turn.is_summary = turn.is_summary or bool(value.get("isCompactSummary"))
        self.turns[turn] = None
        self._book.used([place])
        return turn


def _unsaid(line: JSON) -> tuple[Fate, str] | None:
    """The fate of a line that is no part of a conversation; None for the others."""
    if line.get("isApiErrorMessage"):
        return Fate.NO_MESSAGE, "an error of the API, which no model said"
    kind = word(line, "type")
    return None if kind in ("user", "assistant") else (Fate.NO_MESSAGE, f"a line of type {kind!r}")


def _conversations(turns: Iterable[_Turn], book: Book) -> Iterator[Conversation]:
    """The turns from each beginning; every agent of a session is a tree of its own."""
    graphs: dict[tuple[str, str], Graph] = {}
    for turn in turns:
        lost, above = book.losing(turn.places[0]), turn.above
        turn.said = read_message({"role": turn.role, "content": turn.blocks}, lost)
        turn.part = _part(turn)
        graph = graphs.setdefault((turn.session, turn.part), Graph(book))
        turn.node, before = None, list[Message]()
        if above is not None and (above.session, above.part) == (turn.session, turn.part):
            turn.node = above.node
        elif above is not None:
            before = above.history()
        if turn.is_cut_off:
            turn.said = [as_context(message, lost) for message in turn.said]
        for message in turn.said:
            is_answer = message["role"] == "assistant" and not turn.is_cut_off
            answer = message if is_answer else None
            prompt = before if answer else [*before, message]
            turn.node = graph.add(
                prompt, answer, places=turn.places, model=turn.model, after=turn.node
            )
            before = []
    first: dict[str, str] = {}
    for (session, part), graph in graphs.items():
        name = f"{session}/{part}" if part else session
        for one in graph.conversations(Origin("claude-code", name)):
            yield _linked(one, first.get(session, ""), part)
            first.setdefault(session, one.id)


def _part(turn: _Turn) -> str:
    """The agent, or the summary that the turn's history begins with."""
    above = turn.above
    if turn.is_summary:
        return f"summary {turn.places[0].line}"
    return above.part if above is not None and above.part.startswith("summary") else turn.agent


def _linked(one: Conversation, first: str, part: str) -> Conversation:
    if (one.link is not None and one.link.relation is Relation.FORK) or not first or not part:
        return one
    relation = Relation.COMPACTION if part.startswith("summary") else Relation.SUBAGENT
    return replace(one, link=Link(first, relation))
