"""The neutral record: one conversation, where it came from, and how it was judged."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from areal_sdk import Message
from areal_sdk.tool_calls import MAX_DEPTH, is_too_deep
from areal_sdk_traces.book import BadRowError, Place

JSON = dict[str, Any]

WEIGHT = "weight"
"""Key of a message that is 0 where nothing is learnt: context, or an answer that another conversation has."""

LACKS = "lacks"
"""Key of a message of others that is true if it lost a part, such as an image: no answer to it is taught."""

CUT_OFF = "an answer that was cut off is context"
"""The entry in the book for an answer that met a limit: whoever learns it learns to stop in the middle."""


class Relation(StrEnum):
    """The way a conversation hangs on its parent."""

    FORK = "fork"
    """Both begin with the same messages."""
    SUBAGENT = "subagent"
    COMPACTION = "compaction"
    """The conversation goes on after a summary took the place of the history."""
    SAME_TRACE = "same trace"


@dataclass(frozen=True, slots=True)
class Link:
    """The place of a conversation in the tree of its trace."""

    parent: str
    """Id of the parent conversation."""
    relation: Relation
    num_shared: int = 0
    """Messages at the beginning that the parent has too."""

    def to_json(self) -> JSON:
        shared = self.num_shared
        return {"parent": self.parent, "relation": self.relation, "num_shared": shared}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages from the first to the last answer, complete in itself."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[JSON, ...] = ()
    link: Link | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    comments: tuple[str, ...] = ()
    user: str = ""
    tags: tuple[str, ...] = ()
    task: str = ""
    """The name of what was attempted, if the source has one: several attempts share it."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data of the task, in an episode of a run: rewards read it."""
    model: str = ""
    format: str = ""
    places: tuple[Place, ...] = ()
    """The rows from which the conversation was read."""
    trace: str = ""
    """Id of the trace or session in the source."""
    turns: tuple[int | None, ...] = ()
    """The turn that gave each message, in an episode of a run. Empty for conversations of other tools."""

    @property
    def score(self) -> float | None:
        """The score of the name `reward`, else `score`, else the only one.

        >>> Conversation("c", (), scores={"helpful": 1.0}).score, Conversation("c", ()).score
        (1.0, None)
        """
        for name in ("reward", "score"):
            if name in self.scores:
                return self.scores[name]
        return next(iter(self.scores.values())) if len(self.scores) == 1 else None

    @property
    def num_prompt(self) -> int:
        """Messages before the first answer that may be learnt."""
        return next((i for i, one in enumerate(self.messages) if is_learnt(one)), 0)

    def scored_by(self, name: str) -> "Conversation":
        """The conversation with the score `name` alone."""
        return replace(self, scores={key: v for key, v in self.scores.items() if key == name})

    def digest(self) -> str:
        """The same for conversations that say the same, whatever their source."""
        said = [meaning(message) for message in self.messages]
        return hashlib.blake2b(canonical([said, list(self.tools)]), digest_size=16).hexdigest()

    def to_json(self) -> JSON:
        return {
            "id": self.id,
            "messages": list(self.messages),
            "tools": list(self.tools),
            "score": self.score,
            "scores": dict(self.scores),
            "comments": list(self.comments),
            "user": self.user,
            "tags": list(self.tags),
            "model": self.model,
            "tree": self.link and self.link.to_json(),
            "provenance": {
                "format": self.format,
                "trace": self.trace,
                "rows": [
                    {"file": one.file, "line": one.line, **({"part": one.part} if one.part else {})}
                    for one in self.places
                ],
            },
        }


def is_learnt(message: Message) -> bool:
    return message.get("role") == "assistant" and message.get(WEIGHT) != 0


def meaning(message: Message) -> list[Any]:
    """The meaning of a message: equal for a message and for what a client sends back of it, thoughts aside.

    >>> meaning({"role": "assistant", "content": "yes "}) == meaning({"role": "assistant", "content": "yes"})
    True
    """
    calls = [
        [call["function"]["name"], arguments_of(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return [message["role"], (message.get("content") or "").strip(), calls]


def arguments_of(text: str) -> Any:
    """The value of a call's arguments, so that space and order of keys do not count; the text, if it is no JSON."""
    try:
        return read_json(text)
    except ValueError:
        return text


def read_json(text: str | bytes) -> Any:
    """The JSON value of a text. ValueError also for one that is nested too deep to be written again."""
    value = orjson.loads(text)
    raw = text.encode() if isinstance(text, str) else text
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def flaws_of(messages: Sequence[Message]) -> list[str]:
    """The faults of messages that are kept as they were recorded."""
    found, open_calls, called = [], dict[str, str](), set[str]()
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            call = message.get("tool_call_id") or ""
            if call not in called:
                found.append(f"message {index} is the result of {call!r}, which nobody called")
            open_calls.pop(call, None)
            continue
        found += [
            f"the call {call!r} of {name!r} has no result" for call, name in open_calls.items()
        ]
        open_calls = {}
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if call["id"] in open_calls:
                found.append(f"two calls in message {index} have the id {call['id']!r}")
            open_calls[call["id"]] = function["name"]
            called.add(call["id"])
            if not isinstance(arguments_of(function["arguments"]), dict):
                found.append(
                    f"the arguments of {function['name']!r} in message {index} are no JSON object"
                )
    return found


def check(messages: Sequence[Message]) -> None:
    """Raise BadRowError for messages that are no conversation."""
    if not messages:
        raise BadRowError("no messages")
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRowError("no answer of an assistant")
    if messages[0]["role"] == "assistant":
        raise BadRowError("it begins with the assistant: nothing was asked")


def finite(value: object) -> float | None:
    """`value` as a score: a finite number or a truth value; else None."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
