"""The bound on how many episodes may start and on the age of trained tokens, and the rules beside it."""

from dataclasses import dataclass, field

from areal_sdk.config import RolloutSection
from areal_sdk.errors import ConfigError

MAX_IMBALANCE = 8
"""Number of requests by which a server may exceed the least loaded one before its sessions move away."""


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
    """Number of episodes in a step."""
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
        """Whether the token is too old for the step that starts from `version`. None stands for "no trained token",
        which is never too old."""
        return token_version is not None and version - token_version > self.max_staleness


@dataclass(frozen=True, slots=True)
class FlowRules:
    """The settings that decide which groups start, and which a step trains."""

    rollout: RolloutSection
    in_order: bool = False
    """Whether the run is deterministic: taking and dropping groups then do not depend on which episode ended first."""
    gate: StalenessGate = field(init=False)

    def __post_init__(self) -> None:
        rollout = self.rollout
        if rollout.batch % rollout.group_size:
            raise ConfigError(
                f"batch = {rollout.batch} is not a multiple of group_size = {rollout.group_size}"
            )
        if rollout.max_inflight < rollout.group_size:
            raise ConfigError(
                f"max_inflight = {rollout.max_inflight} cannot hold one group of "
                f"{rollout.group_size}: raise it to at least {rollout.group_size}"
            )
        if self.in_order and rollout.max_staleness:
            raise ConfigError(
                f"a deterministic order needs max_staleness = 0, not {rollout.max_staleness}"
            )
        gate = StalenessGate(rollout.batch, rollout.max_staleness, rollout.max_inflight)
        object.__setattr__(self, "gate", gate)

    @property
    def group_size(self) -> int:
        return self.rollout.group_size

    @property
    def groups_per_batch(self) -> int:
        return self.rollout.batch // self.rollout.group_size

    @property
    def drops_incomplete(self) -> bool:
        """Whether a group is dropped, and its other siblings are stopped, as soon as one sibling fails."""
        return self.rollout.incomplete_groups == "drop"

    @property
    def min_members(self) -> int:
        """A group with fewer valid members than this is dropped."""
        return self.group_size if self.drops_incomplete else min(2, self.group_size)
