"""Tasks that are read as they are needed."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.types import Task

logger = logging.getLogger(__name__)

BLOCK = 10_000
"""Number of tasks of a stream that are shuffled and counted as one epoch."""


class TaskStream:
    """Tasks that are read as they are needed, because they are too many for memory or endless.

    They are issued in blocks of `size`; each block is shuffled and consumed as an epoch. While one
    block is issued, the next is read, one task at a time. When the tasks end, another pass begins.
    """

    def __init__(
        self,
        first: Iterator[Task],
        *,
        again: Callable[[], Iterator[Task]],
        what: str,
        size: int = BLOCK,
        known: Sequence[Task] = (),
        curriculum: Curriculum | None = None,
    ) -> None:
        """`first` is an iterator over the first pass; `again` makes one for each later pass.

        `known` are tasks of the first pass that were read already. Checkpoints keep the state of `curriculum`, which
        decides which tasks are read.
        """
        self.curriculum = curriculum
        self.what = what
        self.first = known
        self.size = size
        self._first = first
        self._again = again
        self._items = self._passes(None)
        self._coming: dict[str, Task] = {}
        """The tasks of the next block that were read so far, by id."""
        self._is_whole = False
        self._is_over = False

    def limit(self, passes: int | None) -> None:
        """Make at most `passes` passes over the tasks. Call this before the first read."""
        self._items = self._passes(passes)

    def read_ahead(self) -> None:
        """Read one more task of the next block, unless the block is complete."""
        if self._is_whole:
            return
        try:
            task = next(self._items)
        except StopIteration:
            self._is_whole = self._is_over = True
            return
        if task is None:
            self._is_whole = bool(self._coming)  # the next pass may repeat ids
            return
        if task.id in self._coming:
            raise ConfigError(
                f"{self.what}: two tasks among {self.size} have the id {task.id!r}; ids key groups "
                "and resumes, and the run itself begins the tasks again when they end"
            )
        self._coming[task.id] = task
        self._is_whole = len(self._coming) == self.size

    def next_block(self) -> tuple[Task, ...]:
        """All tasks of the next block; empty after the last pass."""
        while not self._is_whole:
            self.read_ahead()
        block = tuple(self._coming.values())
        self._coming.clear()
        self._is_whole = self._is_over
        return block

    def _passes(self, most: int | None) -> Iterator[Task | None]:
        """The tasks of every pass, with a None after each pass."""
        for number in itertools.count() if most is None else range(most):
            is_empty = True
            for task in self._again() if number else self._first:
                is_empty = False
                yield task
            if is_empty:
                logger.warning(
                    "%s cannot be read again, so the run ends with its tasks: for another pass give "
                    "a list, or a function that makes them",
                    self.what,
                )
                return
            yield None
