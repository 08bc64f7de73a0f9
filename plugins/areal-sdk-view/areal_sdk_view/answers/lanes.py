"""Trainer, publisher, engine, gate and agents on one clock, as far as the records have times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk import ArealError
from areal_sdk.records import EpisodeSummary, FollowedRun

JSON = dict[str, Any]
Span = tuple[float, float]
"""Begin and end, Unix times."""
Floats = NDArray[np.float64]

MAX_BARS = 4000
"""Maximum number of episodes in one answer: the newest of the window."""
MAX_READ = 100
"""Maximum number of episodes whose model calls are read; of more, an even draw stands for all."""
NUM_BINS = 240
"""Number of parts of the window in which calls and episodes are counted."""
STEPS_SHOWN, MOST_S, LONGEST_S = 8, 600.0, 1e10
"""Default window: the newest steps, and no more seconds than these. The longest window."""
OF_STEP = ("wait", "step", "publish")


def lanes(run: FollowedRun, query: Mapping[str, str]) -> JSON:
    """The lanes of a window. `until`: its end as Unix time, default the newest record. `seconds`: its length."""
    steps, episodes = steps_of(run), run.episodes
    spans = [_span(one) for one in (*episodes[:1], *episodes[-1:])]
    spans += [(one["begin"], one["end"]) for one in of_steps([*steps[:1], *steps[-1:]])]
    oldest, newest = min(spans, default=(0.0,))[0], max((end for _, end in spans), default=0.0)
    shown = min((bar["begin"] for bar in of_steps(steps[-STEPS_SHOWN:])), default=oldest)
    until = float(query.get("until") or newest)
    length = float(query.get("seconds") or min(MOST_S, newest - shown) or 10.0)
    since = until - length
    if not since < until or not length < LONGEST_S:  # or the clock cannot tell `seconds` at `until`
        raise ValueError(f"until = {until}, seconds = {length}: give a moment and a length")
    window = since, until
    # Of 100,000 episodes, calls of a function would be the slow part.
    inside = [one for one in episodes if one.time > since and one.time - one.duration_s <= until]
    return {
        "range": [oldest, newest],
        "since": since,
        "until": until,
        "agents": _slots(inside[-MAX_BARS:]),
        "num_left_out": max(0, len(inside) - MAX_BARS),
        "bars": [bar for bar in of_steps(steps) if bar["end"] > since and bar["begin"] <= until],
        "engine": _calls(run, inside, window),
        "gate": _gate(run, inside, window, max((e["time"] for e in steps), default=0)),
        "measured": [event["time"] for event in run.events if event["kind"] == "eval"],
    }


def steps_of(run: FollowedRun, kind: str = "step") -> list[JSON]:
    """The events of the steps; of a step that a resume repeated, the last one."""
    steps = {event["step"]: event for event in run.events if event["kind"] == kind}
    return [steps[number] for number in sorted(steps)]


def of_steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[JSON]:
    """The parts of each step, back from its end: waiting, computing, publishing. While the next one begins, the engine
    takes the weights; how long is in the event of the next."""
    for event, after in pairwise([*steps, {}]):
        end = float(event["time"])
        lengths = [_number(event.get(f"train/{part}_s")) for part in ("step", "publish")]
        begin = end - sum(lengths)
        edges = (begin - _number(event.get("batch/waited_s")), begin, begin + lengths[0], end)
        parts = [*zip(OF_STEP, pairwise(edges), strict=True)]
        taken = end, end + _number(after.get("engine_update_s"))
        for kind, (first, last) in [*parts, ("update", taken)]:
            if last > first:
                yield {"kind": kind, "begin": first, "end": last, "step": event["step"]}


def _calls(run: FollowedRun, inside: Sequence[EpisodeSummary], window: Span) -> JSON:
    """The calls that the engine has at a time: those that wait or are read, and those that are answered."""
    read = inside[:: -(-len(inside) // MAX_READ) or 1]
    waiting, answered = list[Span](), list[Span]()
    for one in read:
        try:
            turns = run.record(one).episode.turns
        except ArealError:
            continue  # `run.keep_episodes` deleted it, or it is damaged
        for turn in turns:
            begin = _span(one)[0] + turn.began_s
            first, end = begin + turn.first_token_s, begin + turn.duration_s
            waiting.append((begin, min(first, end)))
            answered.append((min(first, end), end))
    scale = len(inside) / max(1, len(read))
    counts = {"waiting": _at_once(waiting, window), "answered": _at_once(answered, window)}
    scaled = {name: [round(scale * num, 2) for num in column] for name, column in counts.items()}
    return {**scaled, "is_estimate": scale > 1.0}


def _gate(run: FollowedRun, inside: Iterable[EpisodeSummary], window: Span, ended: float) -> JSON:
    """The training episodes that run at a time, and the places that the gate keeps empty up to the last step: more
    episodes would be too old. None are kept where callers start them."""
    config = run.run_dir.read_config()
    serve, rollout = (
        of if isinstance(of := config.get(name), Mapping) else {} for name in ("serve", "rollout")
    )
    most = 0.0 if serve.get("learn") else _number(rollout.get("max_inflight"))
    began = next((_span(one)[0] for one in run.episodes if one.split == "train"), ended)
    spans = [(one.time - one.duration_s, one.time) for one in inside if one.split == "train"]
    running = _at_once(spans, window)
    times = np.linspace(*window, NUM_BINS, endpoint=False)
    held = [max(0.0, most - n) * (began < at < ended) for at, n in zip(times, running, strict=True)]
    return {"running": running, "held": held, "most": most}


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """A length or a count; 0.0 for what is no number, or too large for both."""
    return float(value) if is_number(value) and abs(value) < LONGEST_S else 0.0


def _at_once(spans: Sequence[Span], window: Span) -> list[float]:
    """The mean number of spans at a time, in each part of the window."""
    edges = np.linspace(0.0, window[1] - window[0], NUM_BINS + 1)
    sides = np.sort(np.array(spans, np.float64).reshape(-1, 2).T - window[0])
    begun, ended = (_since(side, edges) for side in sides)
    counts = np.diff(begun - ended) * NUM_BINS / edges[-1]
    return [round(float(one), 2) for one in counts]


def _since(times: Floats, edges: Floats) -> Floats:
    """The seconds from each of the sorted times to an edge, those after it left out, summed up for each edge."""
    num, sums = np.searchsorted(times, edges), np.concatenate([[0.0], np.cumsum(times)])
    return np.asarray(num * edges - sums[num], np.float64)


def _span(one: EpisodeSummary) -> Span:
    return one.time - one.duration_s, one.time


def _slots(episodes: Sequence[EpisodeSummary]) -> list[list[JSON]]:
    """Rows of episodes that do not overlap: each takes the lowest row that is free when it begins."""
    rows: list[list[JSON]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for begin, one in sorted(((_span(one)[0], one) for one in episodes), key=lambda pair: pair[0]):
        while busy and busy[0][0] <= begin + 1e-6:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row = len(rows)
            rows.append([])
        heappush(busy, (one.time, row))
        of = {name: getattr(one, name) for name in ("id", "version", "reward", "dropped", "split")}
        rows[row].append({**of, "begin": begin, "end": one.time})
    return rows
