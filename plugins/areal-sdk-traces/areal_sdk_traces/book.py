"""The book of an import: what was read, and the reason for everything that is in no conversation.

A reader either puts a row into a conversation or says why not. `Book.unexplained` finds the rows for which it did
neither, so a reader that forgets a row cannot lose it silently.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A row of the input, as messages name it.

    >>> str(Place("logs/a.jsonl", 3)), str(Place("a.jsonl", 3, "span 2"))
    ('logs/a.jsonl:3', 'a.jsonl:3, span 2')
    """

    file: str
    line: int
    part: str = ""
    """The part of the line, if one line holds several rows."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}, {self.part}" if self.part else where


class Fate(StrEnum):
    """The end of a row, or of a part of it."""

    DAMAGED = "damaged"
    """The row cannot be read; it is in no conversation."""
    NO_MESSAGE = "no message"
    """The row is whole, and is no part of a conversation: a retrieval, a snapshot of files."""
    UNEXPLAINED = "unexplained"
    """No reader took the row, nor said why."""
    PART_LOST = "part lost"
    """The conversation is kept without a part that it cannot hold, such as an image."""
    FLAW = "flaw"
    """The conversation is kept as it was recorded, and something in it is wrong."""
    DUPLICATE = "duplicate"
    FILTERED = "filtered"
    """The conversation was not asked for."""
    NOT_WRITTEN = "not written"
    """The conversation has no place in the output that was asked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    place: Place
    fate: Fate
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.fate}: {self.reason}"


class BadRowError(ValueError):
    """The fault of a row, without its place."""


class Book:
    """The record of an import: rows read and rows left out."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.num_conversations = 0
        """Number of conversations that were read, before duplicates and filters."""
        self.num_masked = 0
        """Texts that the masker changed."""
        self._seen: dict[Place, bool] = {}
        """The rows, and whether their fate is known."""

    def saw(self, place: Place) -> None:
        """Note that a row was read."""
        self._seen.setdefault(place, False)

    def used(self, places: Iterable[Place]) -> None:
        """Note that these rows are in a conversation."""
        self._seen.update(dict.fromkeys(places, True))

    def write(self, place: Place, fate: Fate, reason: str) -> None:
        """Enter the fate of a row. An equal entry is made once."""
        self._seen[place] = True
        entry = Entry(place, fate, reason)
        if entry not in self.entries[-1:]:
            self.entries.append(entry)

    def losing(self, place: Place) -> Callable[[str], None]:
        """A function that enters a part of this row which its conversation cannot hold."""
        return partial(self.write, place, Fate.PART_LOST)

    @contextmanager
    def guarding(self, place: Place) -> Iterator[None]:
        """Enter a BadRowError as the damage of this row, and go on."""
        try:
            yield
        except BadRowError as exc:
            self.write(place, Fate.DAMAGED, str(exc))

    def close(self) -> None:
        """Enter the rows that were read and whose fate nobody told."""
        for place in [place for place, is_known in self._seen.items() if not is_known]:
            self.write(place, Fate.UNEXPLAINED, "no conversation has it, and no reason was given")

    @property
    def num_rows(self) -> int:
        return len(self._seen)

    def counts(self) -> Counter[Fate]:
        return Counter(entry.fate for entry in self.entries)

    def of(self, *fates: Fate) -> list[Entry]:
        return [entry for entry in self.entries if entry.fate in fates]
