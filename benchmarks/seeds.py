"""Numbers over seeds: means with 95 % intervals, and files of finished runs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev

from one_process import Curve

STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 10: 2.262}
"""The 97.5 % quantile of Student's t, by the number of seeds."""

Key = tuple[str | int | float, ...]


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean, from Student's t."""
    return STUDENT_T[len(values)] * stdev(values) / math.sqrt(len(values))


def with_interval(values: Sequence[float], digits: int = 2) -> str:
    """The mean of the values with its interval.

    >>> with_interval([0.5, 0.6, 0.7])
    '0.60 ± 0.25'
    """
    return f"{mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


class Runs:
    """Finished runs by key, kept in a file so that a long comparison can go on where it stopped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[Key, Curve] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._found[tuple(row["key"])] = Curve(**row["curve"])

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def __getitem__(self, key: Key) -> Curve:
        return self._found[key]

    def __setitem__(self, key: Key, curve: Curve) -> None:
        self._found[key] = curve
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "curve": asdict(curve)}) + "\n")


def save_curves(curves: Mapping[Key, Curve], path: Path) -> dict[Key, Curve]:
    """Write the curves beside their picture, a line a run. Returns them as `load_curves` will: rounded."""
    rows = [
        json.dumps(
            {
                "key": key,
                "steps": curve.steps,
                "scores": [round(score, 4) for score in curve.scores],
                "cpu_s": [round(seconds, 2) for seconds in curve.cpu_s],
            }
        )
        for key, curve in curves.items()
    ]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    return load_curves(path)


def load_curves(path: Path) -> dict[Key, Curve]:
    return {
        tuple(row["key"]): Curve(row["steps"], row["scores"], row["cpu_s"])
        for row in json.loads(path.read_text())
    }
