"""Data to learn from: one conversation or one pair of answers a row, in any file that tasks are read from.

A row that cannot be learnt from is refused: the error names its place, the fault and the cure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from areal_sdk.builtin.rows import Wanted, read_rows
from areal_sdk.errors import ConfigError, no_such_file
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sessions.canonical import canonical
from areal_sdk.gateway.tokens.demonstrations import WEIGHT, as_context
from areal_sdk.gateway.wire.chat import parse_message
from areal_sdk.types import Message, Tool

SYSTEM_ROLES = ("system", "developer")
ANSWERING = ("assistant", "tool")
"""Roles that an answer may begin with."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names of an assistant's thoughts in data. The first is the name that is used from then on."""

CONVERSATION = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}]}'
DIFFERENT_PROMPTS = "'chosen' and 'rejected' begin differently, before they answer"
PAIR = '{"messages": [...], "chosen": "...", "rejected": "..."}'

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to learn from. Their assistant messages are trained."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""
    """The file and the line, or the episode, as messages name them."""
    system: str = ""
    """A system message that was given beside the messages."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to the same messages."""

    messages: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""
    system: str = ""


class BadRowError(ValueError):
    """The fault of a line, without the place of the line."""


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file. ConfigError names the first row that is no conversation."""
    return _read(path, to_conversation, Wanted("conversation", CONVERSATION))


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file. ConfigError names the first row that is no pair."""
    return _read(path, _pair, Wanted("pair", PAIR))


def _read(path: Path, parse: Callable[[Mapping[str, Any], str], T], wanted: Wanted) -> list[T]:
    if not path.exists():
        raise ConfigError(f"{no_such_file(path, 'data')}: give a file or a run directory")
    rows = []
    try:
        for row in read_rows(path, wanted=wanted):
            given = {name: value for name, value in row.values.items() if value is not None}
            try:
                rows.append(parse(given, row.where))
            except BadRowError as exc:
                raise ConfigError(f"{row.where}: {exc}{wanted.hint}") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from None
    if not rows:
        raise ConfigError(f"{path} is empty: write one {wanted.noun} a row, {wanted.example}")
    return rows


def to_conversation(row: Mapping[str, Any], where: str) -> Conversation:
    """The conversation that a row holds; BadRowError says what is wrong with it."""
    if "messages" in row:
        messages = read_messages(row["messages"], "messages")
    elif "prompt" in row and "completion" in row:
        before, answer = _without_prompt(_prompt(row), row, "completion")
        messages = (*as_context(before), *answer)
    else:
        raise BadRowError(f'no "messages" (it has {_keys(row)})')
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRowError("no assistant message to learn from")
    if messages[0]["role"] == "assistant":
        raise BadRowError("it begins with the assistant: nothing was asked")
    return Conversation(messages, _tools(row), where, _system(row, messages))


def _pair(row: Mapping[str, Any], where: str) -> Pair:
    for half in ("chosen", "rejected"):
        if half not in row:
            raise BadRowError(f"no {half!r} (it has {_keys(row)})")
    if "messages" in row or "prompt" in row:
        prompt = _prompt(row)
        before, chosen = _without_prompt(prompt, row, "chosen")
        before_rejected, rejected = _without_prompt(prompt, row, "rejected")
        wholes = [one for one in (before, before_rejected) if one is not prompt] or [prompt]
        if not _alike(wholes[0], wholes[-1]):
            raise BadRowError(DIFFERENT_PROMPTS)
        system = _system(row, wholes[0])
        return Pair(wholes[0], chosen, rejected, _tools(row), where, system)
    chosen, rejected = (_answer(row[half], half) for half in ("chosen", "rejected"))
    shared = _num_shared(chosen, rejected)
    if not shared:
        raise BadRowError('no "messages" that come before the answers')
    before, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if any(answer[0]["role"] not in ANSWERING for answer in (chosen, rejected)):
        raise BadRowError(DIFFERENT_PROMPTS)
    return Pair(before, chosen, rejected, _tools(row), where, _system(row, before))


def _without_prompt(
    prompt: tuple[Message, ...], row: Mapping[str, Any], key: str
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The prompt and the answer alone. Data may repeat the prompt at the start of the answer; without such a repetition
    the first result is `prompt` itself. One of the two prompts may lack the system message."""
    said = _answer(row[key], key)
    if said[0]["role"] in ANSWERING:
        return prompt, said
    (systems, asked), (own_systems, rest) = map(_without_system, (prompt, said))
    is_repeated = _alike(asked, rest[: len(asked)]) and len(rest) > len(asked)
    if not is_repeated or (systems and own_systems and not _alike(systems, own_systems)):
        raise BadRowError(
            f"{key!r} begins with {said[0]['role']!r}, and not with the prompt: give the answer alone"
        )
    return (*(systems or own_systems), *rest[: len(asked)]), rest[len(asked) :]


def _without_system(
    messages: tuple[Message, ...],
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The leading system messages, and the rest."""
    count = next(
        (i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), len(messages)
    )
    return messages[:count], messages[count:]


def _alike(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Whether roles, texts and calls are the same; space around a text aside."""

    def meaning(message: Message) -> tuple[Any, ...]:
        content = message.get("content")
        text = content.strip() if isinstance(content, str) else content
        return message["role"], text, message.get("tool_calls") or None

    return [*map(meaning, one)] == [*map(meaning, other)]


def _num_shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """The number of messages that two conversations begin with in common, not counting the last message of each."""
    most = min(len(chosen), len(rejected)) - 1
    return next((i for i in range(most) if not _same(chosen[i], rejected[i])), max(0, most))


def _same(one: Message, other: Message) -> bool:
    """Whether two messages are the same. In an answer every character counts, because answers are compared."""
    return one == other or (one["role"] not in ANSWERING and _alike([one], [other]))


def _prompt(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The prompt of a row, in its field `messages` or `prompt`. In a row with both, `messages` may be the chosen
    conversation."""
    key = "messages" if "messages" in row else "prompt"
    asked = row[key]
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    messages = read_messages(asked, key)
    if messages[-1]["role"] == "assistant" and key == "messages" and "prompt" in row:
        return _prompt({"prompt": row["prompt"]})
    if messages[-1]["role"] == "assistant":
        raise BadRowError(f"{key!r} ends with the assistant: the answers come after it")
    return messages


def _answer(value: Any, key: str) -> tuple[Message, ...]:
    """The messages of an answer, which is a text, a message, or messages that end with the assistant's."""
    if isinstance(value, str):
        value = [{"role": "assistant", "content": value}]
    elif isinstance(value, Mapping):
        value = [value]
    messages = read_messages(value, key)
    if messages[-1]["role"] != "assistant":
        raise BadRowError(f"{key!r} ends with {messages[-1]['role']!r}, not with the assistant")
    return messages


def read_messages(value: Any, key: str) -> tuple[Message, ...]:
    """`value` as chat messages. BadRowError names the message that is not one."""
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(f"{key!r} is not a list of messages")
    return tuple(_read_message(message, f"{key}[{index}]") for index, message in enumerate(value))


def _read_message(value: Any, what: str) -> Message:
    """The message in `value`, read and checked as the gateway does with messages of requests."""
    given = dict(value) if isinstance(value, Mapping) else value
    try:
        message = canonical(parse_message(given, what, {}), where=what)
    except ApiError as exc:
        raise BadRowError(exc.message) from None
    if given.get("content") is None and not given.get("tool_calls"):
        raise BadRowError(f"{what} has neither content nor tool_calls")
    for call in message.get("tool_calls") or ():
        _check_call(call, what)
    return _with_weight(_with_thoughts(message, what), what)


def _with_weight(message: Message, what: str) -> Message:
    """The message with a weight of 0 or 1, or without a weight. Tables write null for a weight that is not given."""
    if WEIGHT not in message:
        return message
    weight = message[WEIGHT]
    if weight is None:
        return {name: value for name, value in message.items() if name != WEIGHT}
    if isinstance(weight, bool) or weight not in (0, 1):
        raise BadRowError(f"{what}.weight is {weight!r}: use 0 (context) or 1 (trained), a number")
    return message


def _check_call(call: Mapping[str, Any], what: str) -> None:
    """Raise BadRowError for a call that no model should learn to make."""
    arguments = call["function"].get("arguments")
    try:
        is_object = isinstance(orjson.loads(arguments or ""), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        raise BadRowError(
            f"{what}.tool_calls: the arguments {arguments!r} of {call['function']['name']!r} are no "
            "JSON object, and the model would learn to write them: correct them, or leave the row out"
        )


def _with_thoughts(message: Message, what: str) -> Message:
    name = next((name for name in THOUGHTS if message.get(name)), None)
    if name is None:
        return message
    if not isinstance(message[name], str):
        raise BadRowError(f"{what} has a {name} that is not a text")
    return {**message, THOUGHTS[0]: message[name]}


def _system(row: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """The text in the column `system`; empty if the messages begin with a system message of the same text."""
    system = row.get("system") or ""
    if not isinstance(system, str):
        raise BadRowError('"system" is not a text')
    if not system or messages[0]["role"] not in SYSTEM_ROLES:
        return system
    if not _alike(messages[:1], [{**messages[0], "content": system}]):
        raise BadRowError('"system" is not what the system message says: keep one of them')
    return ""


def _tools(row: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = row.get("tools") or ()
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError('"tools" is not a list of {"type": "function", "function": {...}}')
    return tuple(tools)


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "nothing"
