"""A recorded conversation: how it opens, what its tools answered, and what its user said next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from areal_sdk import ConfigError, Message, Task
from areal_sdk_cassettes.meaning import arguments_of, meaning_of

Tool = dict[str, Any]

_TYPES = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


@dataclass(frozen=True, slots=True)
class Recording:
    opening: tuple[Message, ...]
    """The messages before the first answer."""
    answers: tuple[Message, ...]
    """The assistant's messages from the opening to the end."""
    final_text: str | None
    """The last answer. None if the recording breaks off before one: nothing tells then what is right."""
    num_messages: int
    """Messages from the first to the last answer. What follows, such as thanks, is not played."""
    replies: tuple[tuple[Message, ...], ...]
    """Messages of the user after each answer without a call but the last."""
    results: Mapping[str, tuple[str, ...]]
    """The results of each call by its meaning, in the order in which they were recorded."""
    tools: tuple[Tool, ...]

    @classmethod
    def of(cls, task: Task) -> Self:
        """The recording in `messages` and `tools` of a task's data."""
        messages = _messages_of(task)
        first = next(
            (
                at
                for at, one in enumerate(messages)
                if one["role"] == "assistant" and one.get("weight") != 0
            ),
            None,
        )
        if not first or messages[first - 1]["role"] == "assistant":
            raise ConfigError(
                f"task {task.id}: its messages have to be a question and then an answer of the assistant"
            )
        tools = tuple(task.data.get("tools") or ()) or tools_from(messages)
        final = max((at for at, one in enumerate(messages) if _is_final(one)), default=None)
        end = len(messages) if final is None else final + 1
        earlier, later = (_results(some, tools) for some in (messages[:first], messages[first:]))
        return cls(
            opening=tuple(
                {k: v for k, v in one.items() if k != "weight"} for one in messages[:first]
            ),
            answers=tuple(one for one in messages[first:end] if one["role"] == "assistant"),
            final_text=None if final is None else messages[final]["content"],
            num_messages=end,
            replies=_replies(messages[first:end]),
            # A call that the opening made and the model makes again gets what it would get after the opening.
            results={meaning: found[-1:] for meaning, found in earlier.items()} | later,
            tools=tools,
        )


class Playback:
    """One pass through a recording. A call that was recorded several times gets its results in their order."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._defaults = defaults_of(recording.tools)
        self._times: dict[str, int] = {}
        self.num_calls = 0
        self.num_unseen = 0

    def result(self, call: Message) -> str | None:
        """The recorded result; the last one, if the call is made more often. None for a call that is not recorded."""
        self.num_calls += 1
        meaning = meaning_of(call, self._defaults.get(call["function"]["name"]))
        recorded = self._recording.results.get(meaning)
        if recorded is None:
            self.num_unseen += 1
            return None
        times = self._times.get(meaning, 0)
        self._times[meaning] = times + 1
        return recorded[min(times, len(recorded) - 1)]


def tools_from(messages: Sequence[Message]) -> tuple[Tool, ...]:
    """Definitions of the tools that were called, for a recording without definitions."""
    found: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            fields = found.setdefault(call["function"]["name"], {})
            arguments = arguments_of(call)
            for name, value in arguments.items() if isinstance(arguments, dict) else ():
                fields.setdefault(name, _schema_of(value))
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": fields}},
        }
        for name, fields in found.items()
    )


def defaults_of(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
    """The default of each argument that has one, by tool."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        function = tool["function"]
        fields = (function.get("parameters") or {}).get("properties") or {}
        found[function["name"]] = {
            name: field["default"]
            for name, field in fields.items()
            if isinstance(field, dict) and "default" in field
        }
    return found


def _messages_of(task: Task) -> list[Message]:
    messages = task.data.get("messages")
    if not isinstance(messages, Sequence) or not messages or isinstance(messages, str):
        raise ConfigError(
            f"task {task.id}: it has no messages: a cassette's task is a row of `areal-sdk sft`, "
            '{"messages": [...], "tools": [...]}'
        )
    for message in messages:
        for call in message.get("tool_calls") or ():
            if "name" not in (call.get("function") or {}):
                raise ConfigError(
                    f"task {task.id}: a recorded call has no function with a name: {str(call)[:100]}"
                )
    return list(messages)


def _schema_of(value: object) -> dict[str, Any]:
    name = next((name for kind, name in _TYPES if isinstance(value, kind)), "")
    if name == "array":
        return {"type": name, "items": {}}
    return {"type": name} if name else {}


def _is_final(message: Message) -> bool:
    """Whether a conversation may end with this message: a text without a call, which `sft` would teach."""
    says = message["role"] == "assistant" and message.get("content")
    return bool(says) and not message.get("tool_calls") and message.get("weight") != 0


def _replies(messages: Sequence[Message]) -> tuple[tuple[Message, ...], ...]:
    """The messages of the user between an answer without a call and the next answer."""
    found: list[tuple[Message, ...]] = []
    open_reply: list[Message] | None = None
    for message in messages:
        if message["role"] == "assistant":
            if open_reply:
                found.append(tuple(open_reply))
            open_reply = None if message.get("tool_calls") else []
        elif open_reply is not None:
            open_reply.append(message)
    return (*found, tuple(open_reply)) if open_reply else tuple(found)


def _results(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, tuple[str, ...]]:
    defaults = defaults_of(tools)
    found: dict[str, tuple[str, ...]] = {}
    open_calls: dict[str | None, list[str]] = {}
    for message in messages:
        asked: dict[str | None, list[str]] = {}  # calls without ids of their own share one
        for call in message.get("tool_calls") or ():
            meaning = meaning_of(call, defaults.get(call["function"]["name"]))
            asked.setdefault(call.get("id"), []).append(meaning)
        open_calls |= asked
        if message["role"] == "tool" and (waiting := open_calls.get(message.get("tool_call_id"))):
            meaning = waiting.pop(0)
            found[meaning] = (*found.get(meaning, ()), message.get("content") or "")
    return found
