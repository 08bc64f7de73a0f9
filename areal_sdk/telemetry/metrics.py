"""What is measured while a run goes on: a log that only grows, and summaries that do not grow."""

import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.telemetry.files import JsonLines, read_json_lines


class MetricsLog:
    """`metrics.jsonl`: one line an event, `{"kind": "step", "time": ..., ...}`."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one event: a step, an evaluation, a warning, a restart."""
        self._lines.append({"kind": kind, "time": time.time(), **values})

    def close(self) -> None:
        self._lines.close()


def read_metrics(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run in order, of one kind or of all; safe while it is being written."""
    return [event for _, event in read_json_lines(path) if kind in (None, event["kind"])]


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The `step` events by step. A step that a resumed run did again counts once, as last done."""
    by_step = {event["step"]: event for event in read_metrics(path, kind="step")}
    return [by_step[step] for step in sorted(by_step)]


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


class Histogram:
    """The distribution of positive numbers (durations, lengths), to 5 %, in bounded memory.

    >>> durations = Histogram()
    >>> for milliseconds in range(1, 1001):
    ...     durations.add(milliseconds / 1000)
    >>> [round(durations.percentile(p), 1) for p in (0, 50, 90, 100)]
    [0.0, 0.5, 0.9, 1.0]
    """

    _GROWTH = math.log(1.05)

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum = 0.0
        self.min = math.inf
        self.max = 0.0

    def add(self, value: float) -> None:
        if not value >= 0 or math.isinf(value):
            raise ValueError(f"a histogram holds finite numbers from zero on, not {value}")
        bucket = math.floor(math.log(value) / self._GROWTH) if value > 1e-9 else -10_000
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The value that `percent` of the numbers do not exceed; 0 when there are none."""
        if not self.count:
            return 0.0
        wanted = percent / 100 * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                middle = math.exp((bucket + 0.5) * self._GROWTH)
                return min(max(middle, self.min), self.max)
        return self.max

    def summary(self) -> dict[str, float]:
        """`count, mean, p50, p90, p99, max`: what goes into a metrics line."""
        if not self.count:
            return {"count": 0}
        percentiles = {f"p{p}": round(self.percentile(p), 4) for p in (50, 90, 99)}
        return {"count": self.count, "mean": round(self.mean, 4), **percentiles, "max": self.max}
