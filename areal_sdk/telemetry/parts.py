"""A run directory as a list of parts: its files, and its directories of weights.

A program that copies a run reads this list, and need not know names of files. What the list leaves out belongs to the
machine: logs, answers of open episodes, `live.json`, `flight.jsonl`, `id.json`, and every name that begins with a dot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.telemetry.episode_files import INDEX
from areal_sdk.telemetry.episode_log import growing_files
from areal_sdk.telemetry.live.flight import FLIGHT

_OF_THE_MACHINE = ("live.json", FLIGHT, "id.json")
_EPISODES = "episodes"
_FOLDERS = (_EPISODES, "tokens", "model")


@dataclass(frozen=True, slots=True)
class RunPart:
    """A file of a run, or a directory of weights. Each may be removed or replaced at any time."""

    key: str
    """Path below the run directory, such as `episodes/000001.index` or `checkpoints/step-000020`."""
    path: Path
    grows: bool = False
    """Whether episodes are appended to the file now. Any other file that grows does so by whole lines, and slowly."""
    is_index: bool = False
    """Whether the file names places in the part that is listed before it. A copy is whole if the index is read first and
    written last."""


def list_weights(run: Path) -> list[RunPart]:
    """The checkpoints and exported weights: directories, whole from the moment at which they have their names."""
    try:
        found = sorted((run / "checkpoints").iterdir())
    except FileNotFoundError:
        return []
    return [
        RunPart(f"checkpoints/{path.name}", path)
        for path in found
        if path.is_dir() and not path.name.startswith(".")
    ]


def list_files(run: Path) -> Iterator[RunPart]:
    """All other files, in the order in which a copy is to write them. Each is whole at every moment, up to a last line
    that is not finished."""
    for path in sorted(run.iterdir()):
        if _is_kept(path) and path.name not in _OF_THE_MACHINE:
            yield RunPart(path.name, path)
    growing = growing_files(run / _EPISODES)
    for folder in _FOLDERS:
        for path in sorted((run / folder).glob("*"), key=lambda path: (path.stem, _is_index(path))):
            if _is_kept(path):
                grows = folder == _EPISODES and path.stem in growing
                yield RunPart(f"{folder}/{path.name}", path, grows, _is_index(path))


def _is_index(path: Path) -> bool:
    return path.suffix == INDEX


def _is_kept(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")
