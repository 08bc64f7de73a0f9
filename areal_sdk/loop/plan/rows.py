"""Data to learn from: JSONL, one conversation or one pair of answers a line.

A line that cannot be learnt from is refused: the error names its number, the fault and the cure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from areal_sdk.errors import ConfigError, no_such_file
from areal_sdk.types import Message, Tool

ROLES = ("system", "developer", "user", "assistant", "tool")

CONVERSATION = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}]}'
PAIR = '{"messages": [...], "chosen": "...", "rejected": "..."}'

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to learn from. Their assistant messages are trained."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""
    """The file and the line, or the episode, for what is said about it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ways to go on from the same messages."""

    messages: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""


class BadRowError(ValueError):
    """The fault of a line, without the place of the line."""


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a JSONL file; ConfigError for the first line that is none."""
    return _read(path, to_conversation, CONVERSATION)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a JSONL file; ConfigError for the first line that is none."""
    return _read(path, _pair, PAIR)


def _read(path: Path, parse: Callable[[Mapping[str, Any], str], T], example: str) -> list[T]:
    rows = []
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            row = orjson.loads(line)
            if not isinstance(row, Mapping):
                raise BadRowError("not a JSON object")
            rows.append(parse(row, where))
        except orjson.JSONDecodeError as exc:
            raise ConfigError(
                f"{where}: not JSON ({exc}): write one object a line, {example}"
            ) from None
        except BadRowError as exc:
            raise ConfigError(f"{where}: {exc}; write {example}") from None
    if not rows:
        raise ConfigError(f"{path} is empty: write one object a line, {example}")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        cure = "give a JSONL file or a run directory"
        raise ConfigError(f"{no_such_file(path, 'data')}: {cure}") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from None


def to_conversation(row: Mapping[str, Any], where: str) -> Conversation:
    """The conversation that a row holds; BadRowError says what is wrong with it."""
    if "messages" in row:
        messages = read_messages(row["messages"], "messages")
    elif "prompt" in row and "completion" in row:
        messages = (*_prompt(row), *_answer(row["completion"], "completion"))
    else:
        raise BadRowError(f'no "messages" (it has {_keys(row)})')
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRowError("no assistant message to learn from")
    if messages[0]["role"] == "assistant":
        raise BadRowError("it begins with the assistant: nothing was asked")
    return Conversation(messages, _tools(row), where)


def _pair(row: Mapping[str, Any], where: str) -> Pair:
    for half in ("chosen", "rejected"):
        if half not in row:
            raise BadRowError(f"no {half!r} (it has {_keys(row)})")
    chosen, rejected = (_answer(row[half], half) for half in ("chosen", "rejected"))
    if "messages" in row or "prompt" in row:
        return Pair(_prompt(row), chosen, rejected, _tools(row), where)
    shared = _num_shared(chosen, rejected)
    if not shared:
        raise BadRowError('no "messages" that come before the answers')
    return Pair(chosen[:shared], chosen[shared:], rejected[shared:], _tools(row), where)


def _num_shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """How many messages two whole conversations begin with alike, up to an answer of each."""
    most = min(len(chosen), len(rejected)) - 1
    return next((i for i in range(most) if chosen[i] != rejected[i]), max(0, most))


def _prompt(row: Mapping[str, Any]) -> tuple[Message, ...]:
    key = "messages" if "messages" in row else "prompt"
    asked = row[key]
    if isinstance(asked, str):
        return ({"role": "user", "content": asked},)
    messages = read_messages(asked, key)
    if messages[-1]["role"] == "assistant":
        raise BadRowError(f"{key!r} ends with the assistant: the answers come after it")
    return messages


def _answer(value: Any, key: str) -> tuple[Message, ...]:
    """A text, a message, or messages that end with the assistant's."""
    if isinstance(value, str):
        value = [{"role": "assistant", "content": value}]
    elif isinstance(value, Mapping):
        value = [value]
    messages = read_messages(value, key)
    if messages[-1]["role"] != "assistant":
        raise BadRowError(f"{key!r} ends with {messages[-1]['role']!r}, not with the assistant")
    return messages


def read_messages(value: Any, key: str) -> tuple[Message, ...]:
    """`value` as chat messages; BadRowError says which of them is none."""
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(f"{key!r} is not a list of messages")
    for index, message in enumerate(value):
        what = f"{key}[{index}]"
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, Mapping) else message
            raise BadRowError(f"{what} has the role {role!r}: use one of {', '.join(ROLES)}")
        if message.get("content") is None and not message.get("tool_calls"):
            raise BadRowError(f"{what} has neither content nor tool_calls")
        for call in message.get("tool_calls") or ():
            if not _is_call(call):
                raise BadRowError(
                    f'{what} has a tool call without {{"function": {{"name", "arguments"}}}}'
                )
    return tuple(dict(message) for message in value)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and "name" in function and "arguments" in function


def _tools(row: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = row.get("tools") or ()
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError('"tools" is not a list of {"type": "function", "function": {...}}')
    return tuple(tools)


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "nothing"
