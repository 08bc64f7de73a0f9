"""One exporter a format. An exporter is a function from an episode to rows that other tools read, tokens included.

The rows come back through the reader of the same format: the conversations are then equal to those of the episode.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from areal_sdk import Episode
from areal_sdk.records import overview_of
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


Exporter = Callable[[Episode, Source, Place, Book], Iterator[JSON]]


def export_run(run: Path, target: str, book: Book, *, where: str = "") -> Iterator[JSON]:
    """The rows of all episodes of the run, oldest first."""
    export = exporter_of(target)
    about = overview_of(run)
    known = {"agent": "-", "model": "-"} if about is None else asdict(about)
    agent, model = (known[name].removeprefix("-") for name in ("agent", "model"))
    for episode, summary, place in read_episodes(run, book, where=where):
        book.used([place])
        source = Source(run.name, agent or "areal-sdk", model, summary.split)
        yield from export(episode, source, place, book)


def exporter_of(target: str) -> Exporter:
    return cast(Exporter, import_module(f"areal_sdk_traces.exporters.{target}").export)
