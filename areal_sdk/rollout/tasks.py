"""Which task comes next: epochs, a seeded order, and what was consumed already."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.seeds import stable_seed
from areal_sdk.types import Task

TaskKey = tuple[int, str]
"""(epoch, task id): what is consumed once, whatever process or run dispatched it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One task to attempt in one epoch."""

    task: Task
    epoch: int
    position: int
    """Place in the epoch's order."""

    @property
    def key(self) -> TaskKey:
        return (self.epoch, self.task.id)

    @property
    def order(self) -> tuple[int, int]:
        """Sorts draws as they were issued, in this run or a resumed one."""
        return (self.epoch, self.position)


class TaskSource:
    """Issues every task once an epoch. A resumed run is issued what was never consumed.

    In flight is not consumed: `consume` says when a group has been trained or given up, and
    `state` is what a checkpoint keeps.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
    ) -> None:
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise ConfigError("there are no tasks to train on: give a non-empty dataset")
        repeated = _first_repeated(task.id for task in self._tasks)
        if repeated is not None:
            raise ConfigError(f"two tasks have the id {repeated!r}: ids key groups and resumes")
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._consumed: dict[int, set[str]] = {}
        self._first_epoch = 0
        """Every epoch before this one is consumed whole."""
        self._draws = self._issue()

    def __len__(self) -> int:
        return len(self._tasks)

    def next(self) -> Draw | None:
        """The next task to attempt; None once every epoch is issued."""
        return next(self._draws, None)

    def consume(self, key: TaskKey) -> None:
        """That task will not be attempted again in its epoch."""
        epoch, task_id = key
        self._consumed.setdefault(epoch, set()).add(task_id)
        while len(self._consumed.get(self._first_epoch, ())) == len(self._tasks):
            del self._consumed[self._first_epoch]
            self._first_epoch += 1

    def state(self) -> dict[str, object]:
        """JSON of what is consumed. `restore` it into a new source over the same tasks."""
        return {
            "first_epoch": self._first_epoch,
            "consumed": {str(e): sorted(ids) for e, ids in sorted(self._consumed.items())},
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Start again at the first task that was not consumed. Before any `next`."""
        first, consumed = state.get("first_epoch"), state.get("consumed")
        if not isinstance(first, int) or not isinstance(consumed, Mapping):
            raise ConfigError(f"the checkpoint's consumed tasks are not readable: {state!r:.200}")
        known = {task.id for task in self._tasks}  # the dataset may have changed since
        self._first_epoch = first
        self._consumed = {int(epoch): known.intersection(ids) for epoch, ids in consumed.items()}
        self._draws = self._issue()

    def _issue(self) -> Iterator[Draw]:
        epoch = self._first_epoch
        while self._epochs is None or epoch < self._epochs:
            for position, task in enumerate(self._order(epoch)):
                if task.id not in self._consumed.get(epoch, ()):
                    yield Draw(task, epoch, position)
            epoch += 1

    def _order(self, epoch: int) -> Sequence[Task]:
        if not self._shuffle:
            return self._tasks
        generator = random.Random(stable_seed("task order", self._seed, epoch))
        return generator.sample(self._tasks, len(self._tasks))


def _first_repeated(ids: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for task_id in ids:
        if task_id in seen:
            return task_id
        seen.add(task_id)
    return None
