"""What a step trains, and when there is no more hope of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass

from areal_sdk.errors import RolloutError
from areal_sdk.rollout.groups import FinishedGroup, Rejection
from areal_sdk.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class CutBatch:
    """What one step trains, and how it came to be."""

    version: int
    """The step starts from this version."""
    finished: tuple[FinishedGroup, ...]
    metrics: Mapping[str, float]
    notices: tuple[str, ...] = ()
    """What the user should hear once, each with its cure."""
    exhausted: bool = False
    """The tasks have run out: no further batch will come."""

    @property
    def groups(self) -> tuple[TrajectoryGroup, ...]:
        return tuple(group.to_trajectory_group() for group in self.finished)

    @property
    def num_episodes(self) -> int:
        return sum(len(group.members) for group in self.finished)


@dataclass(slots=True)
class LosingStreak:
    """Episodes in a row that gave nothing to train.

    An agent that never works should end the run with its error, not eat the dataset.
    """

    limit: int
    num_lost: int = 0

    def end(self) -> None:
        self.num_lost = 0

    def lose(self, size: int, cause: Rejection) -> RolloutError | None:
        """A whole group is given up; the error to end with once it is one too many."""
        self.num_lost += size
        if self.num_lost < self.limit:
            return None
        return RolloutError(
            f"{self.num_lost} episodes in a row gave no group to train; "
            f"the last one dropped: {cause.reason.value}: {cause.message}"
        )
