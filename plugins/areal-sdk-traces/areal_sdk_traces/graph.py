"""The messages of a trace as a tree: calls that repeat a history share its messages, and each leaf is a conversation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Book, Fate, Place
from areal_sdk_traces.conversation import (
    JSON,
    WEIGHT,
    Conversation,
    Link,
    Relation,
    canonical,
    check,
    flaws_of,
    meaning,
)


@dataclass(slots=True)
class _Node:
    message: Message
    parent: int | None
    is_sampled: bool = False
    places: list[Place] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    tools: tuple[JSON, ...] = ()
    model: str = ""
    agent: str = ""
    turn: int | None = None
    children: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The common properties of the conversations of one trace."""

    format: str
    trace: str
    """Empty if the source names none: each conversation is then named by a digest of what it says."""
    user: str = ""
    tags: tuple[str, ...] = ()
    task: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    comments: tuple[str, ...] = ()
    agent_parents: Mapping[str, str] = field(default_factory=dict)
    """The agent that started an agent, by the ids of both."""


class Graph:
    """A tree that grows call by call."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._nodes: list[_Node] = []
        self._places: dict[tuple[int | None, bytes], int] = {}

    def add(
        self,
        prompt: Sequence[Message],
        answer: Message | None,
        *,
        places: Iterable[Place],
        tools: Sequence[JSON] = (),
        scores: Mapping[str, float] | None = None,
        model: str = "",
        agent: str = "",
        turn: int | None = None,
        after: int | None = None,
    ) -> int:
        """Add a call: its prompt and what the model answered. Returns the node of its last message.

        `after` is the node that the prompt continues, so that a transcript gives each message once.
        """
        at = after
        places = list(places)
        for message in prompt:
            at = self._step(at, message)
        if answer is not None:
            at = self._step(at, answer)
            if self._nodes[at].is_sampled:
                for place in places:
                    self._book.write(place, Fate.DUPLICATE, "the same call as an earlier row")
                return at
        if at is None:
            raise BadRowError("no messages")
        node = self._nodes[at]
        if answer is not None:
            node.message, node.is_sampled = answer, True
        node.places += places
        node.scores |= scores or {}
        node.tools, node.model, node.agent, node.turn = tuple(tools), model, agent, turn
        return at

    def add_transcript(
        self, said: Iterable[tuple[Message, Place]], *, tools: Sequence[JSON] = (), model: str = ""
    ) -> None:
        """Messages of one session in their order. An assistant's message was sampled, unless its weight is 0."""
        at: int | None = None
        for message, place in said:
            is_answer = message["role"] == "assistant" and message.get(WEIGHT) != 0
            prompt, answer = ((), message) if is_answer else ((message,), None)
            at = self.add(prompt, answer, places=[place], tools=tools, model=model, after=at)

    def _step(self, at: int | None, message: Message) -> int:
        key = at, canonical(meaning(message))
        if key not in self._places:
            self._places[key] = len(self._nodes)
            self._nodes.append(_Node(message, at))
            if at is not None:
                self._nodes[at].children += 1
        return self._places[key]

    def conversations(self, origin: Origin) -> list[Conversation]:
        """One conversation a leaf, in the order of the calls. An answer is learnt in the first that has it."""
        found: list[Conversation] = []
        leaves: list[int] = []
        owners: dict[int, int] = {}
        """The first conversation that has a node, as its place in `found`."""
        for leaf, node in enumerate(self._nodes):
            if node.children:
                continue
            path = self._path(leaf)
            places = [place for at in path for place in self._nodes[at].places]
            messages = [self._message(at, is_new=at not in owners) for at in path]
            try:
                check(messages)
            except BadRowError as exc:
                for place in places:
                    self._book.write(place, Fate.DAMAGED, str(exc))
                continue
            one = self._conversation(path, messages, places, origin, found, leaves, owners)
            number = f"#{len(found)}" if found else ""
            name = f"{origin.trace}{number}" if origin.trace else one.digest()
            for at in path:
                owners.setdefault(at, len(found))
            found.append(replace(one, id=name))
            leaves.append(leaf)
        return found

    def _path(self, leaf: int) -> list[int]:
        path: list[int] = []
        at: int | None = leaf
        while at is not None:
            path.append(at)
            at = self._nodes[at].parent
        return path[::-1]

    def _message(self, at: int, *, is_new: bool) -> Message:
        node = self._nodes[at]
        if node.message["role"] != "assistant" or (node.is_sampled and is_new):
            return node.message
        return {**node.message, WEIGHT: 0}

    def _conversation(
        self,
        path: list[int],
        messages: list[Message],
        places: list[Place],
        origin: Origin,
        found: Sequence[Conversation],
        leaves: Sequence[int],
        owners: Mapping[int, int],
    ) -> Conversation:
        nodes = [self._nodes[at] for at in path]
        for flaw in flaws_of(messages):
            self._book.write(places[-1], Fate.FLAW, flaw)
        scores = dict(origin.scores)
        for node in nodes:
            scores |= node.scores
        return Conversation(
            "",
            tuple(messages),
            tools=next((node.tools for node in nodes[::-1] if node.tools), ()),
            link=self._link(path, origin, found, leaves, owners),
            scores=scores,
            comments=origin.comments,
            user=origin.user,
            tags=origin.tags,
            task=origin.task,
            model=next((node.model for node in nodes[::-1] if node.model), ""),
            format=origin.format,
            places=tuple(dict.fromkeys(places)),
            trace=origin.trace,
            turns=tuple(node.turn for node in nodes),
        )

    def _link(
        self,
        path: list[int],
        origin: Origin,
        found: Sequence[Conversation],
        leaves: Sequence[int],
        owners: Mapping[int, int],
    ) -> Link | None:
        if not found:
            return None
        shared = next((at + 1 for at in reversed(range(len(path))) if path[at] in owners), 0)
        common = [self._nodes[at].message["role"] for at in path[:shared]]
        if not origin.trace and {*common} <= {"system", "developer"}:
            return None  # calls of one application, which nothing else joins
        if common:
            return Link(found[owners[path[shared - 1]]].id, Relation.FORK, shared)
        mine = self._nodes[path[-1]].agent
        for parent, leaf in zip(found, leaves, strict=True):
            if mine and origin.agent_parents.get(mine) == self._nodes[leaf].agent:
                return Link(parent.id, Relation.SUBAGENT)
        return Link(found[0].id, Relation.SAME_TRACE)
