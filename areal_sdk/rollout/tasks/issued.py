"""A task as it is issued, the request to play one of its episodes, and the seeds of the episode.

Seeds are hashes of names, so that they agree between processes; `hash()` does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from areal_sdk.telemetry.episode_index import task_key
from areal_sdk.types import Episode, Task

TaskKey = tuple[int, str]
"""Epoch and id of a task, which is consumed once, even if the run is resumed."""


@dataclass(frozen=True, slots=True)
class IssuedTask:
    """A task, issued for one epoch."""

    task: Task
    epoch: int
    """Number of the epoch, or of the block of a stream."""
    position: int
    """Position in the order of the epoch."""
    caller: str = ""
    """Name of the caller who brought the task; empty for a task that the run plays."""

    @property
    def source(self) -> str:
        """The source whose rewards are compared: one caller, or one source of tasks."""
        return self.caller or self.task.source

    @property
    def key(self) -> TaskKey:
        return (self.epoch, self.task.id)

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the order of issue, which a resumed run keeps."""
        return (self.epoch, self.position)


class TaskBook(ABC):
    """The part of a task source that knows which tasks are consumed."""

    @abstractmethod
    def consume(self, key: TaskKey) -> None:
        """Note that the task was trained or given up: a resumed run does not repeat it."""

    @abstractmethod
    def state(self) -> Mapping[str, object]:
        """JSON for a checkpoint."""

    @abstractmethod
    def restore(self, state: Mapping[str, object]) -> None:
        """Continue from a `state`. Call this before the first task is issued."""

    def end_step(self) -> None:  # noqa: B027 - most sources need not know
        """Note that all groups of a batch were trained, and their tasks consumed."""

    def metrics(self) -> Mapping[str, float]:
        """Metrics of the source, beside those of a batch."""
        return {}

    def notices(self) -> tuple[str, ...]:
        """New warnings about the source, each with its cure."""
        return ()


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """The request to play one episode. A retry keeps the `id`."""

    id: str
    task: Task
    group: str = ""
    sibling: int = 0
    epoch: int = 0
    attempt: int = 0
    """Number of earlier attempts that ended because their rollout node was lost."""

    def __post_init__(self) -> None:
        task_key(self.task)  # before play, which may change the data of the task


class PlaysEpisodes(Protocol):
    """The part of a runner that an evaluation uses."""

    async def run(self, request: EpisodeRequest) -> Episode:
        """Play an episode. Failures of the episode are in its outcome; only bugs raise."""
        ...


SEED_BITS = 63


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed from `parts`, such as (run seed, task id, epoch, sibling, turn).

    >>> stable_seed(0, "task-1", 0, 2)
    6893916561925302899
    >>> stable_seed("ab", "c") == stable_seed("a", "bc")
    False
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        encoded = f"{type(part).__name__}:{part}".encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)


def seed_of_agent(seed: int) -> int:
    """The lowest 32 bits of a seed, since `JSON.parse` rounds above 53 bits, and `numpy.random.seed` takes 32.

    >>> seed_of_agent(stable_seed(0, "task-1", 0, 2)) < 2**32
    True
    """
    return seed & 0xFFFF_FFFF
