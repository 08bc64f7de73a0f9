"""Outputs: the neutral record, and rows for `sft`, `dpo` and `train`."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, cast

from areal_sdk_traces.book import Book
from areal_sdk_traces.conversation import Conversation

Writer = Callable[[Iterable[Conversation], Book], Iterator[dict[str, Any]]]

OUTPUTS = {
    name: f"areal_sdk_traces.writers.rows:{name}"
    for name in ("conversations", "sft", "dpo", "tasks")
}

TARGETS = ("atif", "verifiers", "inspect", "otel")
"""The formats of `traces export`: the modules of `areal_sdk_traces.exporters`."""


def writer_of(name: str) -> Writer:
    module, _, function = OUTPUTS[name].partition(":")
    return cast(Writer, getattr(import_module(module), function))
