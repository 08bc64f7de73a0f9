"""The metrics of a run: an append-only log of events, a rate over the latest seconds, and the use of tools with advice if
no tool was ever called."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

from areal_sdk.telemetry.files import JsonLines, read_json_lines
from areal_sdk.types import Episode

_OF_STEPS = ("step", "eval", "held_out")

NOTICES = ("note", "warning")
"""Levels of a `notice` event, which has the step and the text that the user was told."""


class MetricsLog:
    """`metrics.jsonl`: one line per event, `{"kind": "step", "time": ..., ...}`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: JsonLines | None = JsonLines(path)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one event: a step, an evaluation, a notice, a restart. A closed log opens for this one event."""
        event = {"kind": kind, "time": time.time(), **values}
        if self._lines is not None:
            self._lines.append(event)
            return
        with closing(JsonLines(self._path)) as lines:
            lines.append(event)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None


_COUNTS = ("batch/episodes", "batch/groups")
"""The values that must be numbers if an event has them. Any other value may be null, because JSON has no NaN."""
_TEXTS: Mapping[str, tuple[str, ...]] = {"notice": ("level", "text"), "failed": ("error",)}
"""The texts that events of a kind have."""


def read_metrics(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run in order, of one kind or of all. This is safe while the run writes."""
    events = (event for _, event in read_json_lines(path) if is_event(event))
    return [event for event in events if kind in (None, event["kind"])]


def is_event(line: Any) -> bool:
    """Whether a line is an event that this version can read. A damaged line must not hide the others.

    >>> at = {"time": 1.5, "step": 3}
    >>> is_event({"kind": "step", **at, "ledger": {"trained": 8}}), is_event({"kind": "notice", **at}), is_event([1])
    (True, False, False)
    """
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return False
    if not isinstance(line.get("split", ""), str) or not all(
        isinstance(line.get(name, 0), int | float) for name in _COUNTS
    ):
        return False
    if not all(isinstance(line.get(name), str) for name in _TEXTS.get(line["kind"], ())):
        return False
    if line["kind"] == "step" and any(
        isinstance(value, list | dict) != (name == "ledger") for name, value in line.items()
    ):
        return False
    has_step = line["kind"] in (*_OF_STEPS, "resume", "notice", "sft")
    numbers = ("time", "step") if has_step else ("time",)
    return all(isinstance(line.get(name), int | float) for name in numbers)


def read_history(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """The events that count, of one kind or of all.

    A run that resumes from a checkpoint takes the later steps again, so their earlier events are left out.
    """
    events: list[dict[str, Any]] = []
    for event in read_metrics(path):
        add_event(events, event)
    return [event for event in events if kind in (None, event["kind"])]


def add_event(events: list[dict[str, Any]], event: dict[str, Any]) -> None:
    """Append `event` to the events that count. A resume removes those of the steps that are taken again."""
    if event["kind"] == "resume":
        last = event["step"]
        events[:] = [e for e in events if e["kind"] not in _OF_STEPS or e["step"] <= last]
    events.append(event)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The `step` events by step. If a step was taken again, the latest event counts."""
    by_step = {event["step"]: event for event in read_history(path, kind="step")}
    return [by_step[step] for step in sorted(by_step)]


def last_event(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The event that says how the run ended; empty if it has not ended. Notices may come after this event."""
    return next((event for event in reversed(events) if event["kind"] != "notice"), {})


def told(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The notices, each text once, with the step at which it came first and the number of `times`.

    Notices of steps that were taken again are included, because they may tell the reason.

    >>> told([{"kind": "notice", "step": step, "level": "note", "text": "slow"} for step in (3, 5)])
    [{'step': 3, 'level': 'note', 'text': 'slow', 'times': 2}]
    """
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["kind"] == "notice":
            first = {key: event[key] for key in ("step", "level", "text")}
            found.setdefault(event["text"], {**first, "times": 0})["times"] += 1
    return list(found.values())


class Rate:
    """Events per second over the last `window_s` seconds."""

    def __init__(self, *, window_s: float = 30.0, num_buckets: int = 30) -> None:
        self._bucket_s = window_s / num_buckets
        self._counts: deque[tuple[int, float]] = deque(maxlen=num_buckets)
        self._began: float | None = None
        self._window_s = window_s
        self.total = 0.0

    def add(self, count: float = 1.0, *, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        if self._began is None:
            self._began = now
        bucket = int(now / self._bucket_s)
        self.total += count
        if self._counts and self._counts[-1][0] == bucket:
            count += self._counts.pop()[1]
        self._counts.append((bucket, count))

    def per_second(self, *, now: float | None = None) -> float:
        if self._began is None:
            return 0.0
        now = time.monotonic() if now is None else now
        oldest = int((now - self._window_s) / self._bucket_s)
        recent = sum(count for bucket, count in self._counts if bucket > oldest)
        elapsed = max(self._bucket_s, min(self._window_s, now - self._began))
        return recent / elapsed


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
    """Advice for a run whose model was offered tools and never called one; empty if it called one, or had none."""
    offered = called = 0.0
    for step in steps:
        num = step.get(f"batch/{OFFERED_TOOLS}", 0.0)
        offered += num
        called += num * step.get(f"batch/{CALLED_TOOLS}", 0.0)
    return never_called(round(offered)) if offered and not called else ""
