"""The runs below the given directories, and those of them that are open."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from areal_sdk import ArealError
from areal_sdk.records import EpisodeRecord, EpisodeSummary, EpisodeTokens, FollowedRun, overview_of
from areal_sdk_view.answers.endings import Ending
from areal_sdk_view.notes import FILE as NOTES
from areal_sdk_view.notes import read_note

MAX_OPEN = 4
"""Maximum number of runs whose episode summaries stay in memory: about 0.6 kB an episode."""


class NotThereError(Exception):
    """No such run, or no such part of a run."""


class OpenRun(FollowedRun):
    """A run in memory, with what views have read of its episodes."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._by_field: dict[str, tuple[list[EpisodeSummary], int, dict[str, list[int]]]] = {}
        """The places of the first episodes of a list by the value of a field; the list, and how many they are."""
        self.endings: dict[tuple[str, int], Ending] = {}
        """The endings of failed episodes by file and offset, where an episode never changes."""
        self.readings: dict[str, dict[str, Any]] = {}
        """The turns of the latest reading of an episode by each model, up to `readings_end` in their file."""
        self.readings_end = 0

    def episode(self, name: str) -> EpisodeRecord:
        """The whole episode `name`. NotThereError if there is none."""
        summary = self.find(name)
        if summary is None:
            run = whole_text(self.run_dir.path.name)
            raise NotThereError(f"no episode {name!r} in run {run!r}")
        return self.record(summary)

    def seen(self, record: EpisodeRecord) -> tuple[EpisodeTokens | None, str]:
        """The tokens of an episode as its step saw them, and the problem with the record of that step, if there is one."""
        try:
            return self.tokens(record), ""
        except (ArealError, LookupError, TypeError, ValueError) as exc:
            return None, str(exc)

    def of(self, name: Literal["group", "task_id"], value: str) -> list[EpisodeSummary]:
        """The episodes with this group or task, oldest first."""
        among, num, places = self._by_field.get(name, (None, 0, {}))
        if among is not self.episodes:  # the first look, or the index was read anew
            num, places = 0, {}
        for place in range(num, len(self.episodes)):
            places.setdefault(getattr(self.episodes[place], name), []).append(place)
        self._by_field[name] = self.episodes, len(self.episodes), places
        return [self.episodes[place] for place in places.get(value, ())]


class Library:
    """Runs by name. A name is that of the directory; a second one of the same name is `NAME~2`."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._open: OrderedDict[Path, tuple[OpenRun, threading.Lock]] = OrderedDict()
        self._overviews: dict[Path, tuple[object, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def paths(self) -> dict[str, Path]:
        """The directories of the runs by name."""
        found: dict[str, Path] = {}
        for path in dict.fromkeys(self._candidates()):
            first = name = whole_text(path.name)
            number = 1
            while name in found:
                number += 1
                name = f"{first}~{number}"
            found[name] = path
        return found

    def path(self, name: str) -> Path:
        """The directory of a run. NotThereError if there is none of this name."""
        path = self.paths().get(name)
        if path is None:
            raise NotThereError(f"no run {name!r}")
        return path

    def _candidates(self) -> Iterator[Path]:
        for root in self._roots:
            if (root / "config.toml").is_file():
                yield root
            else:
                yield from sorted(path.parent for path in root.glob("*/config.toml"))

    def list(self) -> list[dict[str, Any]]:
        """The overview of each run with the name that the viewer gives it, newest first."""
        rows = []
        for name, path in self.paths().items():
            if (row := self._overview(path)) is not None:
                rows.append({**row, **read_note(path), "run": name})
        return sorted(rows, key=lambda row: -row["began"])

    def _overview(self, path: Path) -> dict[str, Any] | None:
        """The overview, read again only if the run wrote something since."""
        watched = ("metrics.jsonl", "live.json", "config.toml", ".lock")
        stamp = tuple(_stamp(path / name) for name in watched)
        known = self._overviews.get(path)
        if known is not None and known[0] == stamp and known[1]["state"] != "running":
            return known[1]
        overview = overview_of(path)
        if overview is None:
            return None
        row = {key: value for key, value in overview.to_json().items() if key != "path"}
        self._overviews[path] = stamp, row
        return row

    @contextmanager
    def open(self, name: str) -> Iterator[OpenRun]:
        """The run as it is now; nobody else reads on in it meanwhile."""
        path = self.path(name)
        with self._lock:
            if path not in self._open:
                self._open[path] = OpenRun(path), threading.Lock()
            self._open.move_to_end(path)
            run, lock = self._open[path]
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        with lock:
            run.refresh()
            yield run

    def warm(self) -> None:
        """Read the index of the newest run, which is asked for first as a rule."""
        with suppress(ArealError, NotThereError, OSError):  # a page that asks for it is told
            for row in self.list()[:1]:
                with self.open(row["run"]):
                    pass

    def state(self, name: str) -> object:
        """A value that changes when the run writes something, gets a note or ends; without a name, when any run does."""
        return [_state(path) for path in ([self.path(name)] if name else self.paths().values())]


def _state(path: Path) -> object:
    """A run that is killed writes nothing: its lock is free then."""
    indexes = sorted((path / "episodes").glob("*.index"))
    watched = [*(path / name for name in ("metrics.jsonl", "live.json", NOTES)), *indexes]
    return path, FollowedRun(path).run_dir.is_in_use(), [_stamp(one) for one in watched]


def whole_text(text: str) -> str:
    """`text` with a mark in place of what is no character: the name of a directory may be any bytes."""
    return text.encode("utf-8", "replace").decode()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size
