"""Agents, trainer and engine on one clock, as far as the records have times."""

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from areal_sdk.records import EpisodeSummary, FollowedRun

MAX_BARS = 4000
"""Episodes in one answer: the newest of the window."""


def lanes(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """`until`: Unix time, default the newest step. `seconds`: length of the window."""
    steps = [event for event in run.events if event["kind"] == "step"]
    newest = max(
        [*(e["time"] for e in steps[-1:]), *(one.time for one in run.episodes[-1:])], default=0.0
    )
    oldest = min(
        [*(e["time"] for e in steps[:1]), *(one.time for one in run.episodes[:1])], default=0.0
    )
    until = float(query.get("until") or newest)
    seconds = float(query.get("seconds") or 10.0)
    since = until - seconds
    inside = [
        one for one in run.episodes if since < one.time and one.time - one.duration_s <= until
    ]
    return {
        "range": [oldest, newest],
        "since": since,
        "until": until,
        "agents": _slots(inside[-MAX_BARS:]),
        "num_left_out": max(0, len(inside) - MAX_BARS),
        "trainer": [
            bar
            for event in steps
            for bar in _of_step(event)
            if bar["end"] > since and bar["begin"] < until
        ],
        "measured": [
            {"time": event["time"], "text": f"evaluation {event.get('name')}"}
            for event in run.events
            if event["kind"] == "eval" and since <= event["time"] <= until
        ],
    }


def _of_step(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a step, back from its end: waiting, computing, publishing."""
    end, found = float(event["time"]), []
    parts = (
        ("publish", event.get("train/publish_s")),
        ("step", event.get("train/step_s")),
        ("wait", event.get("batch/waited_s")),
    )
    for kind, length in parts:
        if length:
            found.append({"kind": kind, "begin": end - length, "end": end, "step": event["step"]})
            end -= length
    return found[::-1]


def _slots(episodes: list[EpisodeSummary]) -> list[list[dict[str, Any]]]:
    """Rows of episodes that do not overlap: each takes the lowest row that is free when it begins."""
    rows: list[list[dict[str, Any]]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for one in sorted(episodes, key=lambda one: one.time - one.duration_s):
        begin = one.time - one.duration_s
        while busy and busy[0][0] <= begin + 1e-6:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row = len(rows)
            rows.append([])
        heappush(busy, (one.time, row))
        rows[row].append(
            {
                "id": one.id,
                "begin": begin,
                "end": one.time,
                "version": one.version,
                "reward": one.reward,
                "dropped": one.dropped,
                "split": one.split,
            }
        )
    return rows
