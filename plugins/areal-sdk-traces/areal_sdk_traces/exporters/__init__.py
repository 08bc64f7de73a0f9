"""One exporter a format. An exporter is a function from an episode to rows that other tools read, tokens included.

A module may have a second function, `gathered`, from the rows of all episodes to those of the run.

The rows come back through the reader of the same format: the conversations are then equal to those of the episode.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import cast

from areal_sdk import Episode
from areal_sdk.records import EpisodeSummary, overview_of
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON
from areal_sdk_traces.recorded import read_episodes


@dataclass(frozen=True, slots=True)
class Source:
    """The run that an episode is of."""

    run: str
    agent: str
    model: str
    split: str = ""
    began: float = 0.0
    """Unix time at which the run began."""


Exporter = Callable[[Episode, Source, Place, Book], Iterator[JSON]]


def export_run(run: Path, target: str, book: Book, *, where: str = "") -> Iterator[JSON]:
    """The rows of all episodes of the run, oldest first, or what the format makes of them together."""
    about = overview_of(run)
    known = {"agent": "-", "model": "-"} if about is None else asdict(about)
    agent, model = (known[name].removeprefix("-") for name in ("agent", "model"))
    began = about.began if about else 0.0
    source = Source(run.name, agent or "areal-sdk", model, began=began)
    rows = _rows(exporter_of(target), source, read_episodes(run, book, where=where), book)
    gathered = getattr(import_module(f"areal_sdk_traces.exporters.{target}"), "gathered", None)
    return rows if gathered is None else cast(Iterator[JSON], gathered(rows, source))


def _rows(
    export: Exporter,
    source: Source,
    episodes: Iterable[tuple[Episode, EpisodeSummary, Place]],
    book: Book,
) -> Iterator[JSON]:
    for episode, summary, place in episodes:
        book.used([place])
        yield from export(episode, replace(source, split=summary.split), place, book)


def exporter_of(target: str) -> Exporter:
    return cast(Exporter, import_module(f"areal_sdk_traces.exporters.{target}").export)
