"""The tasks of a run in the order they are issued, and which of them are consumed.

A task is issued once an epoch, in a seeded order, and is consumed when its group was trained or given up.
"""

import itertools
import logging
import random
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.rollout.tasks.issued import IssuedTask, TaskBook, TaskKey, stable_seed
from areal_sdk.rollout.tasks.stream import TaskStream
from areal_sdk.types import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Consumed:
    """The consumed positions of one epoch. Positions are consumed almost in order, so it is small."""

    order: int
    """`TaskSource._order_id` of the order that the positions refer to."""
    below: int = 0
    """Position before which every position is consumed."""
    beyond: set[int] = field(default_factory=set)
    """Consumed positions after `below`."""

    def __contains__(self, position: int) -> bool:
        return position < self.below or position in self.beyond

    def add(self, position: int) -> None:
        if position >= self.below:
            self.beyond.add(position)
        while self.below in self.beyond:
            self.beyond.remove(self.below)
            self.below += 1

    def to_json(self) -> dict[str, object]:
        return {"order": self.order, "below": self.below, "beyond": sorted(self.beyond)}


class TaskSource(TaskBook):
    """Issues every task once an epoch. A resumed run is issued the tasks that were not consumed.

    A task in flight is not consumed: `consume` is called when its group was trained or given up, and `state` goes into
    checkpoints. The size of `state` grows with the tasks in flight, not with all tasks.
    """

    def __init__(
        self,
        tasks: Iterable[Task] | TaskStream,
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        first: Collection[TaskKey] = (),
        on_consumed: Callable[[TaskKey], None] = lambda key: None,
    ) -> None:
        """`first` are issued before the other tasks of their epoch: a resumed run goes on with episodes of these tasks,
        whose first tokens are old already."""
        self._first = first
        self._on_consumed = on_consumed
        self._stream: TaskStream | None = None
        self._curriculum: Curriculum | None = None
        self._tasks: tuple[Task, ...] = ()
        if isinstance(tasks, TaskStream):
            self._stream = tasks
            self._curriculum = tasks.curriculum
            tasks.limit(epochs)
        else:
            self._tasks = tuple(tasks)
            if not self._tasks:
                raise ConfigError("there are no tasks to train on: give a non-empty dataset")
            repeated = _first_repeated(task.id for task in self._tasks)
            if repeated is not None:
                raise ConfigError(
                    f"two tasks have the id {repeated!r}; ids key groups and resumes: give each task "
                    "an id of its own"
                )
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._consumed: dict[int, _Consumed] = {}
        self._first_epoch = 0
        """Epoch before which every epoch is consumed completely."""
        self._issued: dict[TaskKey, int] = {}
        """The positions of the tasks in flight."""
        self._whole = self._order_id(self._tasks)
        self._sizes: dict[int, int] = {}
        """Sizes of the epochs of a stream that are not yet consumed completely."""
        self._draws = self._issue()

    def next(self) -> IssuedTask | None:
        """The next task to attempt; None once every epoch is issued."""
        return next(self._draws, None)

    def consume(self, key: TaskKey) -> None:
        """Note that the task will not be attempted again in its epoch."""
        epoch, _ = key
        self._on_consumed(key)
        if self._curriculum is not None:
            self._curriculum.consume(key)
        position = self._issued.pop(key, None)
        if position is None:
            position = self._find(key)
        if position is None or epoch < self._first_epoch:
            return
        self._consumed.setdefault(epoch, _Consumed(self._whole)).add(position)
        while (first := self._consumed.get(self._first_epoch)) is not None:
            size = self._size(self._first_epoch)
            if size is None or first.below < size:
                break
            del self._consumed[self._first_epoch]
            self._sizes.pop(self._first_epoch, None)
            self._first_epoch += 1

    def end_step(self) -> None:
        if self._curriculum is not None:
            self._curriculum.end_step()

    def metrics(self) -> Mapping[str, float]:
        return self._curriculum.metrics() if self._curriculum is not None else {}

    def notices(self) -> tuple[str, ...]:
        return self._curriculum.notices() if self._curriculum is not None else ()

    def state(self) -> dict[str, object]:
        """The consumed tasks as JSON, for `restore` of a new source over the same tasks."""
        consumed = {
            str(epoch): entry.to_json()
            for epoch, entry in sorted(self._consumed.items())
            if entry.below or entry.beyond
        }
        state: dict[str, object] = {"first_epoch": self._first_epoch, "consumed": consumed}
        if self._stream is not None:
            state["block"] = self._stream.size
            if self._curriculum is not None:
                state["curriculum"] = self._curriculum.state()
        return state

    def restore(self, state: Mapping[str, object]) -> None:
        """Continue at the first task that was not consumed. Call this before `next`."""
        first, consumed = state.get("first_epoch"), state.get("consumed")
        if not isinstance(first, int) or not isinstance(consumed, Mapping):
            raise ConfigError(f"the checkpoint's consumed tasks are not readable: {state!r:.200}")
        if self._stream is not None:
            led_by = state.get("curriculum")
            if self._curriculum is not None and isinstance(led_by, Mapping):
                self._curriculum.restore(led_by)
            self._skip(self._stream, first, block=state.get("block"))
        elif "block" in state:
            raise ConfigError(
                f"the checkpoint is of a run whose tasks went on after {state['block']}, and these "
                f"end after {len(self._tasks)}: resume it with the tasks that it began with"
            )
        self._first_epoch = first
        for name, entry in consumed.items():
            epoch = int(name)
            self._consumed[epoch] = (
                _Consumed(entry["order"], entry["below"], set(entry["beyond"]))
                if isinstance(entry, Mapping)
                else self._by_ids(epoch, entry)
            )
        self._draws = self._issue()

    # --- internals ---------------------------------------------------------------------------

    def _issue(self) -> Iterator[IssuedTask]:
        for epoch in itertools.count(self._first_epoch):
            tasks = self._epoch(epoch)
            if not tasks:
                return
            places = [*enumerate(self._order(epoch, tasks))]
            if any(key[0] == epoch for key in self._first):
                places.sort(key=lambda place: (epoch, place[1].id) not in self._first)
            for position, task in places:
                # An epoch that a resumed run completes here has no entry any more.
                is_consumed = position in self._consumed.get(epoch, ())
                if epoch >= self._first_epoch and not is_consumed:
                    self._issued[(epoch, task.id)] = position
                    yield IssuedTask(task, epoch, position)
                if self._stream is not None:
                    self._stream.read_ahead()

    def _epoch(self, epoch: int) -> Sequence[Task]:
        """The tasks of the epoch that is issued next; empty if no epoch is left."""
        if self._stream is None:
            tasks = self._tasks if self._epochs is None or epoch < self._epochs else ()
            order = self._whole
        else:
            tasks = self._stream.next_block()
            order = self._order_id(tasks)
            self._sizes[epoch] = len(tasks)
        restored = self._consumed.get(epoch)
        if tasks and restored is not None and restored.order != order:
            logger.warning(
                "the tasks, their order or run.seed are not those of the checkpoint: the epoch that "
                "it was in begins again"
            )
            del self._consumed[epoch]
        if tasks:
            self._consumed.setdefault(epoch, _Consumed(order))
        return tasks

    def _order(self, epoch: int, tasks: Sequence[Task]) -> Sequence[Task]:
        if not self._shuffle:
            return tasks
        generator = random.Random(stable_seed("task order", self._seed, epoch))
        return generator.sample(tasks, len(tasks))

    def _order_id(self, tasks: Iterable[Task]) -> int:
        """A checksum of tasks and order. A checkpoint's positions hold only for tasks with the same checksum."""
        digest = zlib.crc32(f"{self._seed} {self._shuffle}".encode())
        for task in tasks:
            digest = zlib.crc32(task.id.encode("utf-8", "surrogatepass") + b"\n", digest)
        return digest

    def _size(self, epoch: int) -> int | None:
        """Number of tasks of the epoch; None if its block is not read yet."""
        return len(self._tasks) if self._stream is None else self._sizes.get(epoch)

    def _find(self, key: TaskKey) -> int | None:
        """The position of a task that this source did not issue itself."""
        epoch, task_id = key
        order = enumerate(self._order(epoch, self._tasks))
        return next((position for position, task in order if task.id == task_id), None)

    def _by_ids(self, epoch: int, ids: Iterable[str]) -> _Consumed:
        """Read a checkpoint of an older format, which holds ids. The dataset may have changed since."""
        wanted, consumed = set(ids), _Consumed(self._whole)
        for position, task in enumerate(self._order(epoch, self._tasks)):
            if task.id in wanted:
                consumed.add(position)
        return consumed

    def _skip(self, stream: TaskStream, first: int, *, block: object) -> None:
        """Read past the first `first` blocks, which are consumed."""
        if not isinstance(block, int):
            raise ConfigError(
                f"{stream.what} goes on after {stream.size} tasks, and the checkpoint is of a run "
                "that knew all its tasks: return them as a list to resume it"
            )
        stream.size = block
        for _ in range(first):
            stream.next_block()


def _first_repeated(ids: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for task_id in ids:
        if task_id in seen:
            return task_id
        seen.add(task_id)
    return None
