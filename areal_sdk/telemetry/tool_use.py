"""The share of chances in which the model called a tool that it was offered, and advice if it never did."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from areal_sdk.types import Episode

OFFERED_TOOLS, CALLED_TOOLS = "offered_tools", "called_tools"
"""Metrics of a batch: the episodes that were offered tools, and the share of these that called one."""


def called_tools(episode: Episode) -> bool | None:
    """Whether the model called a tool; None if no request offered one."""
    offers = [turn for turn in episode.turns if turn.offers_tools]
    return any(turn.message.get("tool_calls") for turn in offers) if offers else None


def tool_use(called: Iterable[bool | None]) -> Mapping[str, float]:
    """The number of episodes that were offered tools, and the share of these that called one."""
    offered = [does for does in called if does is not None]
    return {OFFERED_TOOLS: float(len(offered)), CALLED_TOOLS: fmean(offered)} if offered else {}


def never_called(num_episodes: int) -> str:
    return (
        f"tools were offered in {num_episodes} episodes and never called: warm up with `sft`, or show "
        "an example in the prompt"
    )


def cold_start(steps: Iterable[Mapping[str, Any]]) -> str:
    """The cure for a run in whose steps no tool was ever called; empty if one was, or none was offered."""
    offered = called = 0.0
    for step in steps:
        num = step.get(f"batch/{OFFERED_TOOLS}", 0.0)
        offered += num
        called += num * step.get(f"batch/{CALLED_TOOLS}", 0.0)
    return never_called(round(offered)) if offered and not called else ""
