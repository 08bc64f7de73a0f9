"""Items of OpenAI's Responses API as chat messages. Codex records the same items."""

from collections.abc import Iterable

from areal_sdk import Message
from areal_sdk_traces.book import BadRowError, Place
from areal_sdk_traces.conversation import JSON
from areal_sdk_traces.messages import Lost, answer_of, call_of, read_message, result_of
from areal_sdk_traces.shapes import mapping, rows_of, text, word

_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "web_search_call": "action",
}
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")

SAID = ("message", "reasoning", *_CALLS, *_RESULTS)
"""Types of items that are part of a conversation."""


class ItemReader:
    """Collects items. What the model said between two inputs becomes one message."""

    def __init__(self, lost: Lost) -> None:
        self.messages: list[tuple[Message, Place]] = []
        self.lost = lost
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[JSON] = []
        self._place = Place("", 0)

    def add(self, given: object, place: Place) -> None:
        """Take one item. BadRowError leaves what was collected as it was."""
        item = mapping(given, "the item")
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise BadRowError("an item without 'type'")
        if kind == "message":
            (message,) = read_message({k: v for k, v in item.items() if k != "type"}, self.lost)
            if message["role"] != "assistant":
                self._put(message, place)
                return
            self._texts.append(message["content"] or "")
        elif kind == "reasoning":
            self._thoughts += _thoughts(item, self.lost)
        elif kind == "web_search_call" and not word(item, "call_id", "id"):
            self.lost("a web search: nobody recorded what it found")
            return
        elif kind in _CALLS:
            self._calls.append(_call(item, kind))
        elif kind in _RESULTS:
            call_id = text(item.get("call_id"), "the call_id")
            output = item.get("output")
            self._put(result_of(call_id, output, self.lost), place)
            return
        else:
            raise BadRowError(f"an item of type {kind!r}")
        self._place = place

    def flush(self) -> list[tuple[Message, Place]]:
        """End the model's last message. Returns all messages."""
        if self._texts or self._calls:
            content = "\n".join(one for one in self._texts if one)
            message = answer_of(content, self._calls, "\n".join(self._thoughts))
            self.messages.append((message, self._place))
        self._texts, self._thoughts, self._calls = [], [], []
        return self.messages

    def _put(self, message: Message, place: Place) -> None:
        self.flush()
        self.messages.append((message, place))


def _call(item: JSON, kind: str) -> JSON:
    value = item.get(_CALLS[kind])
    call_id = word(item, "call_id", "id")
    if not call_id:
        raise BadRowError(f"a {kind} without 'call_id'")
    if kind == "custom_tool_call":  # its input is free text, and a call's arguments are an object
        value = {"input": text(value, "the input")}
    elif kind == "function_call":
        value = text(value, "the arguments")
    name = (
        text(item.get("name"), "the name")
        if kind.endswith("tool_call") or kind == "function_call"
        else kind
    )
    return call_of(call_id, name, value)


def _thoughts(item: JSON, lost: Lost) -> list[str]:
    found = [
        word(mapping(one, "a thought"), "text")
        for name in ("summary", "content")
        for one in rows_of(item.get(name) or [], name)
    ]
    if not found and item.get("encrypted_content"):
        lost("a thought that is encrypted")
    return found


def messages_of(items: object, lost: Lost, place: Place) -> list[Message]:
    """The messages of a request's input or a reply's output: a text, or items."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    reader = ItemReader(lost)
    for index, item in enumerate(_listed(items)):
        try:
            reader.add(item, place)
        except BadRowError as exc:
            raise BadRowError(f"item {index}: {exc}") from None
    return [message for message, _ in reader.flush()]


def _listed(items: object) -> Iterable[object]:
    return rows_of(items, "the items")
