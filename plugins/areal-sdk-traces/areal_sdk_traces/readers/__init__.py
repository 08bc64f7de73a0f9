"""One reader a format. A reader is a function from the rows of the input to conversations.

It puts each row into a conversation, or enters the reason into the book: `areal_sdk_traces.book`.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import cast

from areal_sdk_traces.book import Book
from areal_sdk_traces.conversation import Conversation
from areal_sdk_traces.rows import Row

Reader = Callable[[Iterable[Row], Book], Iterator[Conversation]]

FORMATS = {
    name: f"areal_sdk_traces.readers.{name.replace('-', '_')}"
    for name in (
        *("otel", "openinference", "langfuse", "langsmith", "openai"),
        *("claude-code", "codex", "atif", "verifiers", "inspect"),
    )
}
"""The module of each format, whose function `read` is the reader."""


def reader_of(format: str) -> Reader:
    return cast(Reader, import_module(FORMATS[format]).read)
