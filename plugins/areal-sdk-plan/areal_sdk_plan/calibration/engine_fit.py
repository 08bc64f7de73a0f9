"""The speed of servers, estimated from the calls of recorded runs.

A call waits for a slot and its prefill, then takes a decoding step for each token. The first token
divides a call in two. The part after it gives the decode curve. The part before it gives the speed of
prefill, for calls that found a free slot.
"""

from collections.abc import Sequence

import numpy as np

from areal_sdk import ConfigError
from areal_sdk_plan.calibration.recorded import Floats, RecordedCall, RecordedRun
from areal_sdk_plan.speeds import DecodeCurve, EngineSpeed

MAX_SLOTS_OF_A_SERVER = 256
"""Number of slots that is assumed of servers whose settings do not say it."""
SLOT_SETTINGS = ("slots", "max_slots", "max_running_requests", "max_num_seqs")
COMPUTES = 0.5
"""An engine process that uses more of a core than this while it has requests is limited by it."""
MIN_CALLS = 20


def fit_engine(
    runs: Sequence[RecordedRun],
    counts: Sequence[int],
    notes: list[str],
    *,
    slots: int | None = None,
) -> tuple[EngineSpeed, float]:
    """One server, and the most requests that it was seen to decode together.

    `counts`: servers of each run. What had to be assumed is added to `notes`.
    """
    parts = [_Calls(run.counted_calls(), count) for run, count in zip(runs, counts, strict=True)]
    step, beside, prefill = _fit_decoding(parts, notes)
    request_s = _fit_way(parts, step, beside, prefill, notes)
    scale, cores = _share_of_core(runs, parts, step, beside, prefill)
    most = max(float(np.percentile(part.beside, 95)) + 1.0 for part in parts)
    far = max(2, round(most))
    section = runs[0].config.get("engine", {})
    swaps = np.concatenate([run.column("engine_update_s", default=0.0)[1:] for run in runs])
    speed = EngineSpeed(
        DecodeCurve(((1, scale * step), (far, scale * (step + beside * (far - 1))))),
        prefill_s=scale * prefill,
        request_s=request_s,
        max_slots=slots or _slots(runs[0], notes),
        swap_s=float(np.median(swaps)),
        recomputes=section.get("kv_on_update", "recompute") == "recompute",
        cores=cores,
    )
    return speed, most


class _Calls:
    """The calls of one run as columns."""

    def __init__(self, calls: Sequence[RecordedCall], num_engines: int) -> None:
        if len(calls) < MIN_CALLS:
            raise ConfigError(
                f"a run has {len(calls)} model calls in its counted steps; a fit needs {MIN_CALLS}: "
                "let it run on"
            )
        self.began = np.array([call.began_at for call in calls])
        self.first = np.array([call.first_at for call in calls])
        self.ended = np.array([call.ended_at for call in calls])
        if not (self.first > self.began).any():
            raise ConfigError(
                "this run does not say when first tokens came: it is of an older version; calibrate "
                "from a new run"
            )
        self.computed = np.array([call.num_computed for call in calls], dtype=np.float64)
        self.sampled = np.array([call.num_output for call in calls], dtype=np.float64)
        together = averaged_count(self.first, self.ended) / num_engines
        self.beside = np.maximum(0.0, together - 1.0)
        """Number of other requests that its server decoded, averaged over the time of the request."""
        most = most_open(self.first, self.ended)
        self.found_room = count_at(self.began, self.ended, self.began) < most
        """Whether a slot was free when the request came."""
        order = np.argsort(self.first)
        prefilled = np.concatenate([[0.0], np.cumsum(self.computed[order])])
        begin = np.searchsorted(self.first[order], self.first, side="right")
        end = np.searchsorted(self.first[order], self.ended, side="left")
        self.stalls = (prefilled[np.maximum(begin, end)] - prefilled[begin]) / num_engines
        """Prompt tokens that the server computed for other requests while the request was decoded."""


def _fit_decoding(parts: Sequence[_Calls], notes: list[str]) -> tuple[float, float, float]:
    """Seconds of a decoding step alone, what each request beside it adds, and of a prompt token.

    Prefill of others is seen here too: nothing is decoded meanwhile.
    """
    tokens = np.concatenate([part.sampled for part in parts]) - 1.0
    beside = np.concatenate([part.beside for part in parts])
    stalls = np.concatenate([part.stalls for part in parts])
    seconds = np.concatenate([part.ended - part.first for part in parts])
    if not (tokens > 0).any():
        raise ConfigError(
            "every call of this run sampled a single token: there is no decoding to measure; "
            "calibrate from a run with longer answers"
        )
    columns = np.stack([tokens, tokens * beside, stalls], axis=1)
    step, more, prefill = fit_above_zero(columns, seconds)
    if step == 0.0:
        step = more
        notes.append("the engine was never seen with few requests: its step alone is a guess")
    return max(step, 1e-7), more, prefill


def _fit_way(
    parts: Sequence[_Calls], step: float, beside: float, prefill: float, notes: list[str]
) -> float:
    """Seconds of the way there and back, by the calls that found a free slot."""
    left: list[Floats] = []
    for part in parts:
        free = part.found_room
        work = step + beside * part.beside[free] + prefill * part.computed[free]
        left.append((part.first - part.began)[free] - work)
    values = np.concatenate(left)
    if len(values) < MIN_CALLS:
        notes.append(
            "the servers were always full: the way of a request there is taken to be short"
        )
        return 0.0
    return max(0.0, float(np.percentile(values, 5)))


def _share_of_core(
    runs: Sequence[RecordedRun],
    parts: Sequence[_Calls],
    step: float,
    beside: float,
    prefill: float,
) -> tuple[float, float]:
    """CPU seconds that an engine process on this machine uses in a second of its work, and its
    number of cores.

    An engine that is limited by its core is slowed by others; its own work is its CPU time.
    """
    used = busy_s = 0.0
    for run, part in zip(runs, parts, strict=True):
        cpu = run.cpu_used("engine")
        if cpu is None:
            continue
        each = part.sampled * (step + beside * part.beside) / (part.beside + 1.0)
        busy_s += float(each.sum() + prefill * part.computed.sum())
        used += cpu
    share = used / busy_s if busy_s else 0.0
    return (min(1.0, share), 1.0) if share >= COMPUTES else (1.0, share)


def _slots(run: RecordedRun, notes: list[str]) -> int:
    """Requests that a server decodes together, by its own settings."""
    section = run.config.get("engine", {})
    is_local = section.get("name", "local") == "local"
    for table in (run.engine_options, section if is_local else {}):
        for key in SLOT_SETTINGS:
            if table.get(key):
                return int(table[key])
    notes.append(f"a server decodes at most {MAX_SLOTS_OF_A_SERVER} requests together")
    return MAX_SLOTS_OF_A_SERVER


def averaged_count(began: Floats, ended: Floats) -> Floats:
    """The number of intervals that are open during each interval, averaged over its time.

    >>> averaged_count(np.array([0.0, 0.0]), np.array([2.0, 1.0])).tolist()
    [1.5, 2.0]
    """
    times = np.concatenate([began, ended])
    changes = np.concatenate([np.ones_like(began), -np.ones_like(ended)])
    order = np.argsort(times, kind="stable")
    times, changes = times[order], changes[order]
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(times))])
    taken = np.interp(ended, times, area) - np.interp(began, times, area)
    lasted = ended - began
    return np.where(lasted > 1e-9, taken / np.maximum(1e-9, lasted), 1.0)


def count_at(began: Floats, ended: Floats, times: Floats) -> Floats:
    """The number of intervals that are open at each time. An interval that begins at that time does
    not count."""
    started = np.searchsorted(np.sort(began), times, side="left")
    return (started - np.searchsorted(np.sort(ended), times, side="left")).astype(np.float64)


def most_open(began: Floats, ended: Floats) -> int:
    """The largest number of intervals that are open at the same time.

    >>> most_open(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0, 3.0]))
    2
    """
    times = np.concatenate([began, ended])
    changes = np.concatenate([np.ones_like(began), -np.ones_like(ended)])
    order = np.lexsort((changes, times))  # where one ends as another begins, first the end
    return int(np.cumsum(changes[order]).max())


def fit_above_zero(columns: Floats, values: Floats) -> tuple[float, ...]:
    """Least squares with no coefficient below 0; rows that stand out do not count."""
    kept = np.ones(len(values), dtype=bool)
    found = np.zeros(columns.shape[1])
    for _ in range(3):
        found = _least_squares(columns[kept], values[kept])
        errors = np.abs(columns @ found - values)
        kept = errors <= max(1e-9, float(np.percentile(errors, 97)))
    return tuple(float(value) for value in found)


def _least_squares(columns: Floats, values: Floats) -> Floats:
    """Columns whose coefficient is below 0 are left out, the worst first."""
    active = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while active:
        scale = np.maximum(1e-12, np.abs(columns[:, active]).max(axis=0))
        solved = np.linalg.lstsq(columns[:, active] / scale, values, rcond=None)[0] / scale
        if (solved >= 0.0).all():
            found[active] = solved
            break
        active.pop(int(np.argmin(solved * scale)))
    return found
