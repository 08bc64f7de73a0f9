"""The bound on how many episodes may start, and on the age of tokens that are trained."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from areal_sdk.errors import ConfigError
from areal_sdk.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class StalenessGate:
    """Admission control for asynchronous rollouts: bounds the flow, and tells which samples are too old.

    Beside the batch in training, the pipeline may hold `max_staleness` more batches. `held` counts the
    slots of every group that ended since the run began and was not dropped; trained groups count too.
    Training frees slots by raising `version`. Only a drop gives a slot back. `version` is the version
    that the engines serve, not the version that the trainer last computed.

    The gate bounds the flow, but not a single slow episode. An episode that younger ones overtake can be
    too old when it ends. Therefore `is_stale` also checks every sample when a batch is cut.

    >>> gate = StalenessGate(batch=4, max_staleness=1, max_inflight=100)
    >>> gate.free_slots(version=0, held=0, running=0)   # two batches may be in the pipeline
    8
    >>> gate.free_slots(version=0, held=4, running=4)   # full until the trainer steps
    0
    >>> gate.free_slots(version=1, held=4, running=4)   # the trainer stepped
    4
    """

    batch: int
    """Episodes a step."""
    max_staleness: int
    """eta: updates a trained token may lag behind the step that trains it."""
    max_inflight: int
    """Episodes that run at the same time, whatever the versions."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.max_inflight < 1 or self.max_staleness < 0:
            raise ConfigError(
                f"batch = {self.batch} and max_inflight = {self.max_inflight} must be at least 1, "
                f"max_staleness = {self.max_staleness} at least 0"
            )

    def free_slots(self, *, version: int, held: int, running: int) -> int:
        """Episodes that may start now."""
        by_staleness = (version + self.max_staleness + 1) * self.batch - held - running
        by_capacity = self.max_inflight - running
        return max(0, min(by_staleness, by_capacity))

    def is_stale(self, token_version: int | None, *, version: int) -> bool:
        """Whether the step that starts from `version` may not train that token.

        None stands for "no trained token": that never goes stale.
        """
        return token_version is not None and version - token_version > self.max_staleness


def oldest_version(trajectories: Iterable[Trajectory]) -> int | None:
    """The version of the oldest trained token; None when no token is trained."""
    versions = (trajectory.oldest_version for trajectory in trajectories)
    return min((v for v in versions if v is not None), default=None)


def mask_older(trajectory: Trajectory, *, than: int) -> Trajectory:
    """The trajectory with every trained token sampled before version `than` turned into context."""
    keep = trajectory.loss_mask & (trajectory.versions >= than)
    if np.array_equal(keep, trajectory.loss_mask):
        return trajectory
    return replace(
        trajectory,
        loss_mask=keep,
        logprobs=np.where(keep, trajectory.logprobs, 0.0),
        versions=np.where(keep, trajectory.versions, -1),
        temperatures=np.where(keep, trajectory.temperatures, 1.0),
        turn_of_token=np.where(keep, trajectory.turn_of_token, -1),
    )
