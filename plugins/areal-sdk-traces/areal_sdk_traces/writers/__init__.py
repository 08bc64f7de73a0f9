"""Outputs: the neutral record, rows for `sft`, `dpo` and `train`, and trajectories for other tools."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, cast

from areal_sdk_traces.book import Book
from areal_sdk_traces.conversation import Conversation

Writer = Callable[[Iterable[Conversation], Book], Iterator[dict[str, Any]]]

OUTPUTS = {
    name: f"areal_sdk_traces.writers.{module}:{name}"
    for name, module in (*((name, "rows") for name in ("conversations", "sft", "dpo", "tasks")),)
}


def writer_of(name: str) -> Writer:
    module, _, function = OUTPUTS[name].partition(":")
    return cast(Writer, getattr(import_module(module), function))
