"""Finds the recorded turn that a request continues: by meaning, not by bytes.

Clients re-serialise arguments, reorder keys, drop reasoning, trim text and rename call ids. None of these changes the
meaning of a message, so the recorded tokens stay. Any other change starts a branch, and the branch carries the reason.

A conversation is a chain of hashes: the key of a message is a hash of the message and of the key before
it. So equal keys mean equal conversations, and one lookup finds a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from areal_sdk.gateway.sessions.canonical import canonical, in_order_of_calls
from areal_sdk.gateway.sessions.meaning import (
    call_ids,
    call_meaning,
    calls_by_id,
    is_system,
    meaning,
    reasoning_of,
    ways_to_send_back,
)
from areal_sdk.types import ForkReason, Message, Tool, Turn

Key = bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request in the session's tree."""

    parent: int | None
    """Index of the turn that this one extends."""
    num_matched: int
    """The number of messages of the request that this turn's conversation covers, the turn's answer included."""
    chain: "_Chain" = field(repr=False)


@dataclass(slots=True)
class _RecordedAnswer:
    """The content of a turn, kept to tell how a client's version of the turn differs."""

    turn: int
    message: Message
    reasoning: str


class History:
    """The tree of one session's conversations."""

    def __init__(self) -> None:
        self._answers: dict[Key, _RecordedAnswer] = {}
        """Chain key up to and including a turn's answer -> that turn."""
        self._asked: dict[Key, _RecordedAnswer] = {}
        """Chain key of a whole request -> the first turn that answered it."""
        self._thoughts: dict[Key, list[str]] = {}
        """Chain key of an answer without its thought -> the thoughts that led to it."""
        self._proven: dict[Key, Key] = {}
        """Chain key of an answer's calls with their ids -> chain key of the whole answer."""
        self._order_of_calls: dict[frozenset[str], tuple[str, ...]] = {}
        """The ids of an answer's calls -> the order in which they were sampled."""
        self._spoken: dict[int, tuple[int | None, str]] = {}
        """The text of a turn's answer, and the turn before it that answers the same question."""
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
        new = [
            canonical(message, splits_reasoning=splits_reasoning, where=f"messages[{index}]")
            for index, message in enumerate(messages[same:], same)
        ]
        new = [*map(self._as_sampled, new, [*new[1:], None])]
        result = (*known[:same], *in_order_of_calls(new, before=known[:same]))
        self.given, self._given_canonical = tuple(messages), result
        return result

    def _as_sampled(self, message: Message, following: Message | None) -> Message:
        """The message with its parallel calls in the order in which they were sampled, which their ids prove.

        This is done only if a result with an id follows: results without ids go by the order of the calls.
        """
        calls = message.get("tool_calls") or ()
        if len(calls) < 2 or following is None or following.get("role") != "tool":
            return message
        by_id = {str(call.get("id")): call for call in calls if isinstance(call, dict)}
        order = self._order_of_calls.get(frozenset(by_id)) if len(by_id) == len(calls) else None
        if order is None or following.get("tool_call_id") not in by_id or order == tuple(by_id):
            return message
        return {**message, "tool_calls": [by_id[call_id] for call_id in order]}

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

    def add(
        self, placement: Placement, message: Message, turn: int, *, stops: Sequence[str] = ()
    ) -> None:
        """Record the answer that a placed request got, and the stop strings that could end it."""
        message = canonical(message, splits_reasoning=self._splits_reasoning)
        answer = _RecordedAnswer(turn, message, reasoning_of(message))
        chain = placement.chain
        before = self._speak(placement, message, turn)
        for said in ways_to_send_back(message, stops, before=before):
            key = _link(chain.keys[-1], said)
            if answer.reasoning:  # choices may say the same after other thoughts
                self._answers.setdefault(_link_thought(key, answer.reasoning), answer)
                self._thoughts.setdefault(key, []).append(answer.reasoning)
            self._answers.setdefault(key, answer)
            self._seen.add(_digest(said))
        if ids := call_ids(message):
            self._order_of_calls[frozenset(ids)] = ids
            self._prove(chain.keys[-1], answer)
        self._asked.setdefault(chain.keys[-1], answer)
        self._roots.add(chain.keys[0])
        self._seen.update(chain.meanings[placement.num_matched :])
        self._longest = max(self._longest, len(chain.messages))
        if placement.parent is not None:
            self._parents.add(placement.parent)

    def _speak(self, placement: Placement, message: Message, turn: int) -> str:
        """Remember the text of an answer. Returns the text of earlier answers to the same question."""
        new = placement.chain.messages[placement.num_matched :]
        asked = any(m.get("role") != "tool" for m in new)
        earlier = None if asked else placement.parent
        self._spoken[turn] = earlier, message.get("content") or ""
        texts: list[str] = []
        while earlier is not None and not message.get("tool_calls"):
            earlier, text = self._spoken[earlier]
            texts.append(text)
        return "".join(reversed(texts))

    def reason(self, placement: Placement) -> ForkReason | None:
        """The reason why the request does not continue the latest turn; None if it does."""
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
        """The keys of every prefix. Only the part that the last request did not hold is computed."""
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
            if by_id := calls_by_id(message):
                key = self._proven.get(_link(chain.keys[-1], by_id), key)
            chain.keys.append(self._with_thought(key, reasoning_of(message)))
            chain.meanings.append(_digest(said))
            if calls := message.get("tool_calls"):
                positions = {call.get("id"): i for i, call in enumerate(calls)}
            chain.call_positions.append(positions)
        self._last = chain
        return chain

    def _prove(self, before: Key, answer: _RecordedAnswer) -> None:
        """Remember an answer by the ids of its calls, for clients that leave out the text beside the calls."""
        by_id = calls_by_id({**answer.message, "content": ""})
        assert by_id is not None, "it has calls, each with an id"
        key = _link(before, meaning(answer.message))
        if self._answers[key] is not answer and answer.reasoning:
            key = _link_thought(key, answer.reasoning)
        self._proven[_link(before, by_id)] = key

    def _with_thought(self, key: Key, reasoning: str) -> Key:
        """The key of an answer with the thought that its client sends back. A client that assembles a stream may have
        kept only the last piece of the thought."""
        answer = self._answers.get(key)
        if answer is None or not reasoning or reasoning == answer.reasoning:
            return key
        thoughts = self._thoughts.get(key, [])
        if reasoning not in thoughts:
            ending = next((thought for thought in thoughts if thought.endswith(reasoning)), None)
            reasoning = ending or reasoning  # else it is what the client made up
        return key if reasoning == answer.reasoning else _link_thought(key, reasoning)

    def _reason_without_rewriting(self, chain: "_Chain", parent: int | None) -> ForkReason | None:
        """The reason why the history branches although the client changed no answer of the model."""
        if chain.keys[-1] in self._asked:
            return ForkReason.RESAMPLED
        if parent is not None:
            return ForkReason.EDITED if parent in self._parents else None
        return self._reason_for_new_root(chain)

    def _reason_for_new_root(self, chain: "_Chain") -> ForkReason:
        """The reason for a branch that continues no recorded turn, although the session has some."""
        known = [meaning in self._seen for meaning in chain.meanings]
        systems = [is_system(message) for message in chain.messages]
        others_known = [k for k, system in zip(known, systems, strict=True) if not system]
        same_opening = others_known[:1] == [True]
        same_tools = chain.keys[0] in self._roots
        same_system = all(k for k, system in zip(known, systems, strict=True) if system)
        if same_opening and not same_tools:  # with other instructions too it is another's question
            return ForkReason.TOOLS_CHANGED if same_system else ForkReason.SUBAGENT
        if same_opening and not same_system:
            return ForkReason.SYSTEM_CHANGED
        shares_something = any(others_known) or (any(systems) and all(known[: sum(systems)]))
        if shares_something and len(chain.messages) < self._longest and self._parents:
            return ForkReason.COMPACTION
        return ForkReason.EDITED if any(others_known) else ForkReason.SUBAGENT


def side_calls(turns: Sequence[Turn]) -> list[int]:
    """Indices of the turns beside an episode's conversation, such as a request for its title.

    Such a turn has instructions and tools of its own, and no turn continues it, while other turns of its policy make up
    a conversation.
    """
    found = []
    for policy in {turn.policy: None for turn in turns}:
        own = [index for index, turn in enumerate(turns) if turn.policy == policy]
        continued = {turns[index].parent for index in own} - {None}
        others = any(turns[index].fork is ForkReason.SUBAGENT for index in own)
        found += [
            index
            for index in (own if continued else ())
            if turns[index].parent is None
            and index not in continued
            and (turns[index].fork is ForkReason.SUBAGENT or (index == own[0] and others))
        ]
    return found


@dataclass(slots=True)
class _Chain:
    messages: list[Message] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    meanings: list[Key] = field(default_factory=list)
    call_positions: list[dict[Any, int]] = field(default_factory=list)


def num_equal(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """The number of messages at the start of both that are equal."""
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


def _difference(ours: Message, theirs: Message) -> ForkReason:
    """The difference between the recorded answer and the client's version of it."""
    said, told = (str(m.get("content") or "").strip() for m in (ours, theirs))
    _, end, rest = said.rpartition("</think>")
    if end and rest.strip() == told:
        return ForkReason.THINKING_DROPPED
    our_calls = [call_meaning(call) for call in ours.get("tool_calls") or ()]
    their_calls = [call_meaning(call) for call in theirs.get("tool_calls") or ()]
    same_names = [c[0] for c in our_calls] == [c[0] for c in their_calls]
    if our_calls != their_calls and same_names:
        return ForkReason.ARGS_CHANGED
    return ForkReason.EDITED


def agreements(turns: Sequence[Turn], prompt: tuple[int, ...], *, policy: str = "") -> list[int]:
    """The number of first tokens of each turn that equal those of `prompt`, 0 for turns of another policy. Tokens that
    turns share are compared once, so the cost is little more than the length of the prompt.

    >>> one = Turn((1, 2), (3,), (-0.5,), (0,))
    >>> agreements([one], (1, 2, 3, 4)), agreements([one], (1, 9))
    ([3], [1])
    """
    agreed: list[int] = []
    for turn in turns:
        if turn.policy != policy:
            agreed.append(0)
            continue
        known = turn.num_shared
        if turn.shares_with is not None and agreed[turn.shares_with] < known:
            agreed.append(agreed[turn.shares_with])
            continue
        for part in (turn.new_tokens, turn.output_tokens):
            common = _num_common(prompt[known : known + len(part)], part)
            known += common
            if common < len(part):
                break
        agreed.append(known)
    return agreed


def _num_common(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    if tokens == others:
        return len(tokens)
    low, high = 0, min(len(tokens), len(others))
    while low < high:  # slices compare at the speed of C
        middle = (low + high + 1) // 2
        if tokens[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
