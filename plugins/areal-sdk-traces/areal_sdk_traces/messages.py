"""Chat messages out of any dialect: OpenAI, Anthropic's blocks, LangChain, the parts of OpenTelemetry.

One message of a dialect may be several chat messages: Anthropic puts tool results into a user's message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError
from areal_sdk_traces.conversation import CUT_OFF, JSON, LACKS, WEIGHT
from areal_sdk_traces.shapes import dumped, mapping, parsed_or_text, rows_of, text, word

Lost = Callable[[str], None]
"""Is told of each part that a chat message cannot hold."""

_ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **{"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"},
    **{"AIMessageChunk": "assistant", "HumanMessageChunk": "user"},
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_ENDS = ("finish_reason", "stop_reason", "done_reason")
_LIMITS = (
    *("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    *("abort", "content_filter"),
)
_TEXTS = ("text", "input_text", "output_text", "summary_text", "refusal")


def call_of(call_id: str, name: str, arguments: object) -> JSON:
    """A tool call; arguments may be a text or a value."""
    function = {"name": name, "arguments": dumped({} if arguments is None else arguments)}
    return {"id": call_id, "type": "function", "function": function}


def result_of(call_id: str, content: object, lost: Lost) -> Message:
    missing: list[str] = []
    text = content_text(content, missing.append)
    (message,) = noted([{"role": "tool", "tool_call_id": call_id, "content": text}], missing, lost)
    return message


def noted(messages: Iterable[Message], missing: Sequence[str], lost: Lost) -> list[Message]:
    """The messages of others with a note of the parts that they lost, which `lost` is told. The model's own as they are."""
    for what in missing:
        lost(what)
    note = {LACKS: True} if missing else {}
    return [one if one["role"] == "assistant" else {**one, **note} for one in messages]


def answer_of(content: str, calls: Iterable[JSON] = (), thoughts: str = "") -> Message:
    """An assistant's message."""
    calls = list(calls)
    message: Message = {"role": "assistant", "content": content or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def read_messages(value: object, lost: Lost, *, role: str = "user") -> list[Message]:
    """The chat messages of a list, of one message, or of a plain text, which `role` said."""
    value = parsed_or_text(value)
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, Mapping):
        return read_message(value, lost, role=role)
    listed = rows_of(value, "the messages")
    if len(listed) == 1 and isinstance(listed[0], str):  # LangChain: completions of one prompt
        return [{"role": role, "content": listed[0]}]
    if len(listed) == 1 and isinstance(listed[0], list):  # LangChain: one list a prompt
        listed = listed[0]
    return [
        one for index, given in enumerate(listed) for one in _numbered(given, index, lost, role)
    ]


def read_answer(value: object, lost: Lost, what: str) -> Message:
    """The one message of the assistant in `what` a call gave."""
    answers = read_messages(value, lost, role="assistant")
    if len(answers) != 1 or answers[0]["role"] != "assistant":
        raise BadRowError(f"{what} not one message of the assistant")
    return answers[0]


def first_of(choices: Sequence[Any], lost: Lost) -> Any:
    """The first of several answers to one prompt. The others are told."""
    for index in range(1, len(choices)):
        lost(f"choice {index}")
    return choices[0]


def is_cut_off(said: object) -> bool:
    """Whether what a call gave says that its answer met a limit, in the words of any provider.

    >>> is_cut_off({"choices": [{"finish_reason": "length"}]}), is_cut_off({"stop_reason": "end_turn"})
    (True, False)
    """
    if isinstance(said, list):
        return any(map(is_cut_off, said))
    if not isinstance(said, Mapping):
        return False
    ends = (str(said[name]).lower() for name in _ENDS if name in said)
    return any(end in _LIMITS for end in ends) or any(map(is_cut_off, said.values()))


def as_context(answer: Message, lost: Lost) -> Message:
    """An answer that was cut off."""
    lost(CUT_OFF)
    return {**answer, WEIGHT: 0}


def _numbered(given: object, index: int, lost: Lost, role: str) -> list[Message]:
    try:
        return read_message(given, lost, role=role)
    except BadRowError as exc:
        raise BadRowError(f"message {index}: {exc}") from None


def read_message(given: object, lost: Lost, *, role: str = "") -> list[Message]:
    missing: list[str] = []
    return noted(_read_message(given, missing.append, role=role), missing, lost)


def _read_message(given: object, lost: Lost, *, role: str) -> list[Message]:
    value = _unwrapped(mapping(given, "a message"))
    said = word(value, "role", "type") or role
    if said not in _ROLES:
        raise BadRowError(f"the role is {said!r}")
    said = _ROLES[said]
    if isinstance(value.get("parts"), list):
        return _from_parts(said, value["parts"], lost)
    if said == "tool":
        call = word(value, "tool_call_id", "call_id", "name")
        if not call:
            raise BadRowError("a tool result without 'tool_call_id'")
        return [result_of(call, value.get("content"), lost)]
    if isinstance(value.get("content"), list):
        blocks = value["content"]
        if any(isinstance(one, Mapping) and one.get("type") in _BLOCKS for one in blocks):
            return _from_blocks(said, blocks, lost, calls_of(value))
    content = content_text(value.get("content"), lost)
    if said != "assistant":
        if value.get("content") is None:
            raise BadRowError(f"the {said}'s message has no content")
        return [{"role": said, "content": content}]
    calls = calls_of(value)
    if value.get("content") is None and not calls:
        raise BadRowError("the assistant's message has neither content nor tool calls")
    thoughts = next((value[name] for name in _THOUGHTS if isinstance(value.get(name), str)), "")
    message = answer_of(content, calls, thoughts)
    if value.get("weight") == 0:
        message["weight"] = 0
    return [message]


def _unwrapped(value: JSON) -> JSON:
    """A LangChain message without its envelope."""
    if isinstance(value.get("kwargs"), dict) and isinstance(value.get("id"), list):
        kind = str(value["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return {"role": kind, **{k: v for k, v in value["kwargs"].items() if k != "type"}}
    if isinstance(value.get("data"), dict) and "content" in value["data"]:
        return {"role": value.get("type"), **value["data"]}
    return value


def calls_of(value: Mapping[str, Any]) -> list[JSON]:
    """The tool calls of a message in any dialect, as calls of functions."""
    given = value.get("tool_calls") or mapping(
        value.get("additional_kwargs") or {}, "additional_kwargs"
    ).get("tool_calls")
    return [_call(mapping(one, "a tool call")) for one in rows_of(given or [], "tool_calls")]


def _call(call: JSON) -> JSON:
    function = mapping(call.get("function", call.get("custom", call)), "a function")
    name = text(function.get("name"), "the name of a tool call")
    arguments = next((function[k] for k in ("arguments", "args", "input") if k in function), None)
    return call_of(word(call, "id", "tool_call_id") or name, name, arguments)


def content_text(value: object, lost: Lost) -> str:
    """The text of a content. Parts without text are lost, and told."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        return dumped(value)
    texts = []
    for part in value:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = mapping(part, "a content part").get("type")
        found = part.get("text", part.get("refusal"))
        if isinstance(found, str) and (kind in _TEXTS or kind is None):
            texts.append(found)
        else:
            lost(f"a part of type {kind!r}")
    return "\n".join(texts)


_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _from_blocks(role: str, blocks: list[Any], lost: Lost, calls: list[JSON]) -> list[Message]:
    """Anthropic's blocks. Tool results come first, since they answer what was called before."""
    results: list[Message] = []
    texts, thoughts = [], []
    known = {call["id"] for call in calls}
    for block in blocks:
        kind = mapping(block, "a content block").get("type")
        if kind == "tool_use":
            call_id = text(block.get("id"), "the id of a tool_use")
            if call_id not in known:
                name = text(block.get("name"), "the name of a tool_use")
                calls.append(call_of(call_id, name, mapping(block.get("input"), "its input")))
        elif kind == "tool_result":
            call_id = text(block.get("tool_use_id"), "the tool_use_id of a tool_result")
            results.append(result_of(call_id, block.get("content"), lost))
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), "a thought"))
        else:
            texts.append(content_text([block], lost))
    content = "\n".join(one for one in texts if one)
    if role == "assistant":
        return [answer_of(content, calls, "\n".join(thoughts))]
    return [*results, *([{"role": role, "content": content}] if content or not results else [])]


def _from_parts(role: str, parts: list[Any], lost: Lost) -> list[Message]:
    """The parts of OpenTelemetry's messages."""
    results: list[Message] = []
    texts, thoughts, calls = [], [], []
    for part in parts:
        kind = mapping(part, "a part").get("type")
        if kind == "text":
            texts.append(text(part.get("content"), "the content of a text"))
        elif kind == "reasoning":
            thoughts.append(text(part.get("content"), "the content of a reasoning"))
        elif kind == "tool_call":
            name = text(part.get("name"), "the name of a tool call")
            calls.append(call_of(word(part, "id") or name, name, part.get("arguments")))
        elif kind == "tool_call_response":
            # The specification's text says `result` in places, its schema `response`.
            value = part.get("response", part.get("result"))
            results.append(result_of(text(part.get("id"), "the id of a result"), value, lost))
        else:
            lost(f"a part of type {kind!r}")
    content = "\n".join(texts)
    if role == "assistant":
        return [answer_of(content, calls, "\n".join(thoughts))]
    return [*results, *([{"role": role, "content": content}] if content or not results else [])]


def read_tools(value: object) -> list[JSON]:
    """Tool definitions in OpenAI's shape, from the shapes of OpenAI, Anthropic, OpenTelemetry and verifiers."""
    found = []
    for given in rows_of(value or [], "the tools"):
        tool = mapping(parsed_or_text(given), "a tool")
        function = tool.get("function")
        if not isinstance(function, dict):
            name = text(tool.get("name"), "the name of a tool")
            schema: JSON = next(
                (tool[k] for k in ("parameters", "input_schema") if isinstance(tool.get(k), dict)),
                {},
            )
            function = {"name": name, "parameters": schema}
            if isinstance(tool.get("description"), str):
                function["description"] = tool["description"]
        found.append({"type": "function", "function": function})
    return found
