"""Finds the recorded turn that a request continues: by meaning, not by bytes.

Clients re-serialise arguments, reorder keys, drop reasoning, trim text and rename call ids; none of
that changes what was said, so the recorded tokens stand. Whatever does change it starts a branch,
and the branch carries the reason.

A conversation is a chain of hashes: each message's key is hashed onto the key of what came before,
so equal keys mean equal conversations and one lookup finds a turn.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from areal_sdk.gateway.bounded_json import is_too_deep, loads
from areal_sdk.gateway.canonical import canonical, in_order_of_calls
from areal_sdk.gateway.rewrites import calls_in_text
from areal_sdk.types import ForkReason, Message, Tool

Key = bytes

_LONG_NUMBER = re.compile(r"\d{19}")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request stands in the session's tree."""

    parent: int | None
    """Index of the turn it extends."""
    num_matched: int
    """How many of its messages that turn's conversation covers, the turn's answer included."""
    chain: "_Chain" = field(repr=False)


@dataclass(slots=True)
class _Answer:
    """What a turn said, for telling why a client's version of it differs."""

    turn: int
    message: Message
    reasoning: str


class History:
    """The tree of one session's conversations."""

    def __init__(self) -> None:
        self._answers: dict[Key, _Answer] = {}
        """Chain key up to and including a turn's answer -> that turn."""
        self._asked: dict[Key, _Answer] = {}
        """Chain key of a whole request -> the first turn that answered it."""
        self._parents: set[int] = set()
        self._roots: set[Key] = set()
        self._seen: set[Key] = set()
        self._longest = 0
        self._splits_reasoning = False
        self._last = _Chain()
        self.given: tuple[Message, ...] = ()
        """The messages of the last request, as they came."""
        self._given_canonical: tuple[Message, ...] = ()

    def canonical(
        self, messages: Sequence[Message], *, splits_reasoning: bool
    ) -> tuple[Message, ...]:
        """The messages in canonical form; those of the last request are not looked at again."""
        self._splits_reasoning = splits_reasoning
        known = self._given_canonical
        same = num_equal(messages, self.given)
        if not same == len(messages) == len(self.given):
            while same and messages[same - 1].get("role") == "tool":
                same -= 1  # results that came together are looked at together
        new = [canonical(m, splits_reasoning=splits_reasoning) for m in messages[same:]]
        result = (*known[:same], *in_order_of_calls(new, before=known[:same]))
        self.given, self._given_canonical = tuple(messages), result
        return result

    def place(
        self, messages: Sequence[Message], *, tools: Sequence[Tool], options: Mapping[str, Any]
    ) -> Placement:
        """The deepest recorded turn whose conversation `messages` begins with."""
        chain = self._chain(_root_key(tools, options), messages)
        matched = next(
            (n for n in range(len(messages), 0, -1) if chain.keys[n] in self._answers), 0
        )
        parent = self._answers[chain.keys[matched]].turn if matched else None
        return Placement(parent, matched, chain)

    def add(self, placement: Placement, message: Message, turn: int) -> None:
        """Record the answer that a placed request got."""
        message = canonical(message, splits_reasoning=self._splits_reasoning)
        answer = _Answer(turn, message, _reasoning(message))
        chain = placement.chain
        ways = [meaning(message)]  # in which clients send it back
        if calls := message.get("tool_calls"):
            ways.append(_calls_as_written(message.get("content") or "", calls))
        for said in ways:
            key = _link(chain.keys[-1], said)
            if answer.reasoning:  # choices may say the same after other thoughts
                self._answers.setdefault(_link_thought(key, answer.reasoning), answer)
            self._answers.setdefault(key, answer)
            self._seen.add(_digest(said))
        self._asked.setdefault(chain.keys[-1], answer)
        self._roots.add(chain.keys[0])
        self._seen.update(chain.meanings[placement.num_matched :])
        self._longest = max(self._longest, len(chain.messages))
        if placement.parent is not None:
            self._parents.add(placement.parent)

    def reason(self, placement: Placement) -> ForkReason | None:
        """Why the request does not simply go on from the latest turn; None if it does."""
        if not self._asked:
            return None
        chain, parent = placement.chain, placement.parent
        new = range(placement.num_matched, len(chain.messages))
        spoken = next((i for i in new if chain.messages[i].get("role") == "assistant"), None)
        if spoken is None:
            return self._reason_without_rewriting(chain, parent)
        replaced = self._asked.get(chain.keys[spoken])
        if replaced is not None:
            return _difference(replaced.message, chain.messages[spoken])
        if parent is not None:
            return ForkReason.EDITED
        return self._reason_for_new_root(chain)

    def _chain(self, root: Key, messages: Sequence[Message]) -> "_Chain":
        """Keys of every prefix; only what the last request did not hold is computed."""
        last = self._last
        same = 0
        if last.keys and last.keys[0] == root:
            same = num_equal(messages, last.messages)
        chain = _Chain(
            list(messages),
            last.keys[: same + 1] if same else [root],
            last.meanings[:same],
            last.call_positions[:same],
        )
        for message in messages[same:]:
            positions = chain.call_positions[-1] if chain.call_positions else {}
            said = meaning(message, positions)
            key = _link(chain.keys[-1], said)
            answer = self._answers.get(key)
            if answer and (reasoning := _reasoning(message)) and reasoning != answer.reasoning:
                key = _link_thought(key, reasoning)  # another choice's, or what the client made up
            chain.keys.append(key)
            chain.meanings.append(_digest(said))
            if calls := message.get("tool_calls"):
                positions = {call.get("id"): i for i, call in enumerate(calls)}
            chain.call_positions.append(positions)
        self._last = chain
        return chain

    def _reason_without_rewriting(self, chain: "_Chain", parent: int | None) -> ForkReason | None:
        """Everything the model is said to have said, it did say."""
        if chain.keys[-1] in self._asked:
            return ForkReason.RESAMPLED
        if parent is not None:
            return ForkReason.EDITED if parent in self._parents else None
        return self._reason_for_new_root(chain)

    def _reason_for_new_root(self, chain: "_Chain") -> ForkReason:
        """No recorded turn is continued although the session has some."""
        known = [meaning in self._seen for meaning in chain.meanings]
        systems = [_is_system(message) for message in chain.messages]
        others_known = [k for k, system in zip(known, systems, strict=True) if not system]
        if chain.keys[0] not in self._roots and others_known[:1] == [True]:
            return ForkReason.TOOLS_CHANGED
        same_opening = others_known[:1] == [True]
        if same_opening and not all(k for k, s in zip(known, systems, strict=True) if s):
            return ForkReason.SYSTEM_CHANGED
        shares_something = any(others_known) or (any(systems) and all(known[: sum(systems)]))
        if shares_something and len(chain.messages) < self._longest and self._parents:
            return ForkReason.COMPACTION
        return ForkReason.EDITED if any(others_known) else ForkReason.SUBAGENT


@dataclass(slots=True)
class _Chain:
    messages: list[Message] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    meanings: list[Key] = field(default_factory=list)
    call_positions: list[dict[Any, int]] = field(default_factory=list)


def num_equal(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """How many messages at the start of both are equal."""
    shorter = min(len(messages), len(others))
    if list(messages[:shorter]) == list(others[:shorter]):
        return shorter  # nearly always, and at the speed of C however long the conversation is
    pairs = enumerate(zip(messages, others, strict=False))
    differing = (i for i, (one, other) in pairs if one is not other and one != other)
    return next(differing, shorter)


def _root_key(tools: Sequence[Tool], options: Mapping[str, Any]) -> Key:
    return _digest(orjson.dumps([tools, dict(options)], option=orjson.OPT_SORT_KEYS))


def _digest(data: bytes) -> Key:
    return blake2b(data, digest_size=16).digest()


def _link(key: Key, meaning: bytes) -> Key:
    return blake2b(key + meaning, digest_size=16).digest()


def _link_thought(key: Key, reasoning: str) -> Key:
    return _link(key, b"thought" + reasoning.encode(errors="replace"))


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


_NO_CALLS: Mapping[Any, int] = {}


def meaning(message: Message, call_positions: Mapping[Any, int] = _NO_CALLS) -> bytes:
    """The bytes of what a message says; equal for every way of saying it."""
    role = message.get("role")
    content = message.get("content") or ""
    if role == "assistant":
        calls = message.get("tool_calls") or ()
        if not calls and (rewritten := calls_in_text(content)):
            return _calls_as_written(*rewritten)
        meanings = [_call_meaning(call) for call in calls]
        return orjson.dumps(["assistant", content.strip(), meanings], option=orjson.OPT_SORT_KEYS)
    if role == "tool":
        call = message.get("tool_call_id")
        return orjson.dumps(["tool", call_positions.get(call, call), content])
    if _is_system(message):
        role = "system"
    return orjson.dumps([role, message.get("name"), content])


def _calls_as_written(content: str, calls: Sequence[Mapping[str, Any]]) -> bytes:
    """The meaning of calls that a client wrote as text, in the order in which they were done.

    smolagents runs calls side by side and writes them down as each ends; their results follow as text.
    Calls that keep their structure mean something else, order included: results are told apart by it.
    """
    meanings = sorted(map(_call_meaning, calls), key=_in_order)
    return orjson.dumps(
        ["assistant as text", content.strip(), meanings], option=orjson.OPT_SORT_KEYS
    )


def _in_order(meaning: list[Any]) -> bytes:
    return orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS)


def _call_meaning(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = _parse(arguments)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments.strip()]
    return [function.get("name"), "json", _one_number(arguments)]


def _parse(arguments: str) -> Any:
    """The JSON value; integers past 64 bits, which would lose digits, as text of their own."""
    if _LONG_NUMBER.search(arguments):
        value = json.loads(arguments, parse_int=lambda n: int(n) if len(n) < 19 else f"integer {n}")
        if is_too_deep(value):
            raise ValueError("too deep to be written again")
        return value
    return loads(arguments)


def _one_number(value: Any) -> Any:
    """JSON has one kind of number: a JavaScript client sends 1.0 back as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _one_number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_number(item) for item in value]
    return value


def _reasoning(message: Message) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "").strip()


def _difference(ours: Message, theirs: Message) -> ForkReason:
    """Why the client's version of an answer is not the answer."""
    said, told = (str(m.get("content") or "").strip() for m in (ours, theirs))
    _, end, rest = said.rpartition("</think>")
    if end and rest.strip() == told:
        return ForkReason.THINKING_DROPPED
    our_calls = [_call_meaning(call) for call in ours.get("tool_calls") or ()]
    their_calls = [_call_meaning(call) for call in theirs.get("tool_calls") or ()]
    same_names = [c[0] for c in our_calls] == [c[0] for c in their_calls]
    if our_calls != their_calls and same_names:
        return ForkReason.ARGS_CHANGED
    return ForkReason.EDITED
