"""The end of a run before its time: the reason, and what its parts did in the last minutes, from the flight record."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.flight import read_flight
from areal_sdk.telemetry.metrics import last_event

Row = Mapping[str, Any]

WINDOW_S, FEW_S = 120.0, 5.0
"""Seconds before the end that are looked at, and the fewest of them about which figures are told."""
STUCK_S, IDLE = 20.0, 0.02
"""Seconds without a sign from which a part is stuck, and share of a core below which a process computes nothing."""
TOLD = re.compile("note|warning|error|critical|stopping")
"""Beginnings of the lines that tell of events."""
KILLED = "kill -9, a machine without memory, or one that went down: the run wrote no reason; its last sign was at {}"


def ending_of(run_dir: RunDir) -> tuple[str, tuple[str, ...]]:
    """The reason why the run ended before its time, and lines about its last minutes. Both are empty for a run that
    ended by itself; a run that goes on has lines alone, if a part of it is stuck."""
    try:
        return _ending(run_dir, read_flight(run_dir.path))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return _ending(run_dir, [])  # a record of another version, or a stranger's


def _ending(run_dir: RunDir, rows: Sequence[Row]) -> tuple[str, tuple[str, ...]]:
    last = last_event(run_dir.read_history())
    known = [row for row in rows if "step" in row]
    states = [row for row in known if row["time"] > rows[-1]["time"] - WINDOW_S]
    now = [{"time": time.time()}] if rows and run_dir.is_in_use() else []
    stood = [*rows[:1], *known, *rows[-1:], *now]
    if run_dir.is_in_use():
        return "", tuple(_stuck(states, stood))
    ended = str(rows[-1].get("ended", KILLED.format(_clock(rows[-1])))) if rows else ""
    if last.get("kind") == "end" or ended == "end":
        return "", ()
    said = [f"{_clock(row)} {line}" for row in rows for line in row["said"] if TOLD.match(line)]
    lines = (*_stuck(states, stood), *_course(states), *said[-4:])
    return str(last["error"]) if last.get("kind") == "failed" else ended, lines


def _stuck(states: Sequence[Row], stood: Sequence[Row]) -> Iterator[str]:
    """The parts that gave no sign, in the order in which others wait for them."""
    for before, after in list(pairwise(stood))[-int(WINDOW_S) :]:
        if (silent_s := after["time"] - before["time"]) > STUCK_S:
            yield f"the main process stood still for {silent_s:.0f} s: something blocked its event loop"
    known = [row for row in states if "processes" in row]
    for name in known[0]["processes"] if known else ():
        if gone := [row for row in known if name not in row["processes"]]:
            yield f"the process {name} was gone at {_clock(gone[0])}"
    lasted, rows = _longest(known, lambda row: row.get("asked", 0) > 0 and row["answered"])
    if _is_idle(rows, "engine", lasted):
        yield f"the engine hangs: it answered none of {rows[-1]['asked']} calls for {lasted:.0f} s, and computed nothing"
    lasted, rows = _longest(known, _books_of_silent)
    if rows:
        yield f"agents hang: for {lasted:.0f} s none of {rows[-1]['running']} running episodes asked the model or ended"
    lasted, rows = _longest(known, lambda row: "'trainer: " in str(row["waits"]) and row["step"])
    if _is_idle(rows, "trainer", lasted):
        yield f"the trainer hangs: it computed nothing for {lasted:.0f} s"


def _books_of_silent(row: Row) -> object:
    """The ledger's counts at a moment when episodes run and none of them asks the model; at any other moment False."""
    is_silent = row["running"] > 0 and row.get("asked") == 0
    return is_silent and [row[name] for name in ("running", "buffered", "trained", "dropped")]


def _course(states: Sequence[Row]) -> Iterator[str]:
    """The last minutes in figures."""
    if not states or (lasted := states[-1]["time"] - states[0]["time"]) < FEW_S:
        return
    first, last = states[0], states[-1]
    spent: dict[str, float] = {}
    for row in states:
        for name, seconds in row["waits"]:
            spent[name] = max(spent.get(name, 0.0), min(seconds, row["time"] - first["time"]))
    waited: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for name, seconds in spent.items():  # those of all steps together
        kind = re.sub(r"\d+", "N", name)
        waited[kind] = waited[kind][0] + seconds, name
    told = [f"in the last {lasted:.0f} s, to step {last['step']}: {last['doing'] or 'training'}"]
    if last["trained"] or last["running"]:
        empty = sum(b["time"] - a["time"] for a, b in pairwise(states) if not a["buffered"])
        told.append(f"the buffer was empty for {empty:.0f} s")
    longest = sorted(waited.values())[:-4:-1]
    told += [f"{seconds:.0f} s of wait for {name}" for seconds, name in longest]
    yield "; ".join(told)
    if known := [row for row in states if "processes" in row]:
        at_work = ", ".join(
            f"{name} {_computed(known, name) or 0.0:.0f} s ({mb:.0f} MB)"
            for name, (_, mb) in known[-1]["processes"].items()
        )
        served, free = known[-1]["served"], known[-1]["free_mb"]
        yield f"computed: {at_work}; {free} MB of memory were free; the engine had weights v{served} of v{last['version']}"


def _longest(rows: Sequence[Row], sign: Callable[[Row], object]) -> tuple[float, Sequence[Row]]:
    """The longest stretch of rows with one `sign` other than False, and its seconds; empty below `STUCK_S`."""
    found = [[*same] for value, same in groupby(rows, sign) if value is not False]
    times = [(same[-1]["time"] - same[0]["time"], same) for same in found]
    return max(
        (one for one in times if one[0] > STUCK_S), key=lambda one: one[0], default=(0.0, [])
    )


def _is_idle(rows: Sequence[Row], part: str, lasted: float) -> bool:
    used = _computed(rows, part) if rows else None
    return used is not None and used < IDLE * lasted


def _computed(rows: Sequence[Row], part: str) -> float | None:
    """Seconds of CPU time that the processes of a part used; None if it has none on this machine."""
    first, last = rows[0]["processes"], rows[-1]["processes"]
    names = [name for name in last if part in (name, name.partition("-")[0])]
    return sum(last[name][0] - first.get(name, [0.0])[0] for name in names) if names else None


def _clock(row: Row) -> str:
    return time.strftime("%H:%M:%S", time.localtime(row["time"]))
