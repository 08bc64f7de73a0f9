"""The way from finished episodes to the batch of a step: triage, groups, batches.

Episode -> triage -> ScoredEpisode -> PendingGroup -> FinishedGroup -> RolloutBatch +---> Rejection
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from areal_sdk.errors import RolloutError
from areal_sdk.rollout.tasks import IssuedTask
from areal_sdk.rollout.trajectory import mask_older, oldest_version, to_trajectories
from areal_sdk.telemetry.episode_log import PreparedRecord
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.telemetry.metrics import called_tools
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Episode, ErrorKind, OutcomeKind, Task

Truncated = Literal["score", "mask", "drop"]

DROP_REASON = {
    ErrorKind.AGENT: DropReason.ERROR_AGENT,
    ErrorKind.REWARD: DropReason.ERROR_REWARD,
    ErrorKind.ENVIRONMENT: DropReason.ERROR_ENVIRONMENT,
    ErrorKind.INFRASTRUCTURE: DropReason.ERROR_INFRASTRUCTURE,
    ErrorKind.TIMEOUT: DropReason.ERROR_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """A scored episode, reduced to what training and the metrics of its batch need."""

    sibling: int
    trajectories: tuple[Trajectory, ...]
    reward: float
    success: bool
    num_turns: int
    num_sampled: int
    duration_s: float
    truncated: bool
    oldest_version: int | None
    """Version of the oldest trained token; None if the episode counts only in its group's baseline."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the episode's outcome."""
    called_tools: bool | None = None
    """Whether the model called a tool; None if it was offered none."""

    def masked(self, *, before: int) -> Self | None:
        """The episode with all tokens of versions before `before` as context; None if it then trains no token."""
        masked = tuple(mask_older(t, than=before) for t in self.trajectories)
        oldest = oldest_version(masked)
        if oldest is None:
            return None
        return replace(self, trajectories=masked, oldest_version=oldest)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why an episode is not trained."""

    reason: DropReason
    message: str


@dataclass(frozen=True, slots=True)
class TriagedEpisode:
    """An episode that a rollout node has triaged, and prepared for the records."""

    id: str
    task: Task
    epoch: int
    triaged: ScoredEpisode | Rejection
    duration_s: float
    num_sampled: int
    """Number of sampled tokens, those of excluded turns included."""
    record: PreparedRecord
    read: Callable[[], Episode]
    """Makes the episode from its record. Most runs never call it."""


EpisodeObserver = Callable[[Episode | TriagedEpisode, ScoredEpisode | Rejection], None]
"""Function that is told of every episode after its triage."""


def triage(episode: Episode, *, truncated: Truncated = "score") -> ScoredEpisode | Rejection:
    """Accept a scored episode, or say why it is dropped. A missing reward never becomes zero."""
    outcome = episode.outcome
    if outcome.kind is OutcomeKind.ERROR:
        assert outcome.error is not None, "an error outcome names its kind"
        return Rejection(DROP_REASON[outcome.error], outcome.message)
    if episode.truncated and truncated == "drop":
        return Rejection(DropReason.TRUNCATED, 'it ran into a limit, and truncated = "drop"')
    if outcome.kind is OutcomeKind.ABSTAIN or outcome.reward is None:
        reason = DropReason.TRUNCATED if episode.truncated else DropReason.ABSTAINED
        return Rejection(reason, outcome.message or "no reward was given")
    masked = episode.truncated and truncated == "mask"
    trajectories = to_trajectories(episode, train=not masked)
    if not trajectories:
        return Rejection(DropReason.UNTRAINABLE, why_untrainable(episode))
    return ScoredEpisode(
        episode.sibling,
        trajectories,
        reward=outcome.reward,
        success=is_success(episode),
        num_turns=len(episode.turns),
        num_sampled=sum(len(turn.output_tokens) for turn in episode.turns),
        duration_s=episode.duration_s,
        truncated=episode.truncated,
        oldest_version=oldest_version(trajectories),
        metrics=outcome.reported,
        called_tools=called_tools(episode),
    )


def is_success(episode: Episode) -> bool:
    """`outcome.success` if it is set, else whether the reward is 1."""
    success = episode.outcome.success
    return success if success is not None else episode.outcome.reward == 1.0


def why_untrainable(episode: Episode) -> str:
    if not episode.turns:
        return "the agent never called the model"
    excluded = sorted({turn.excluded.value for turn in episode.turns if turn.excluded})
    if not excluded:
        return "the model's answers were empty"
    return f"no turn was sampled from the plain softmax: {', '.join(excluded)}"


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Siblings of one task, from admission until the last has ended. Holds `size` slots."""

    id: str
    issued: IssuedTask
    size: int
    members: list[ScoredEpisode] = field(default_factory=list)
    num_ended: int = 0
    give_up: DropReason | None = None
    """The reason why the group will not be trained, if that is already certain."""
    rejection: Rejection | None = None
    """The latest rejection of a sibling."""
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    """The tasks that play the siblings."""
    ages: dict[int, Callable[[], int | None]] = field(default_factory=dict)
    """Functions by running sibling, each of which returns the version of the sibling's first token."""
    stopped: dict[int, DropReason] = field(default_factory=dict)
    """Siblings that were cancelled one by one, and why."""

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest token sampled so far, in finished and running siblings."""
        finished = (member.oldest_version for member in self.members)
        running = (age() for age in self.ages.values())
        return min((v for v in (*finished, *running) if v is not None), default=None)

    @property
    def num_running(self) -> int:
        return self.size - self.num_ended

    def running(self) -> Iterable[tuple[int, int | None]]:
        """The siblings that run and were not stopped, each as its number and the version of its first token."""
        return [(n, age()) for n, age in self.ages.items() if n not in self.stopped]

    def finished(self) -> "FinishedGroup":
        """The group in the form in which it waits for a step, without what only play needs."""
        # In a fixed order: the last digit of the mean reward depends on it.
        members = sorted(self.members, key=lambda member: member.sibling)
        return FinishedGroup(self.id, self.issued, tuple(members))

    def stop(self, sibling: int, reason: DropReason) -> None:
        """Cancel a sibling that would be dropped anyway."""
        self.stopped[sibling] = reason
        self.tasks[sibling].cancel()


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group with enough valid members to train. It keeps its slots until it is dropped."""

    id: str
    issued: IssuedTask
    members: tuple[ScoredEpisode, ...]
    oldest_version: int | None = field(init=False)

    def __post_init__(self) -> None:
        versions = (member.oldest_version for member in self.members)
        oldest = min((v for v in versions if v is not None), default=None)
        object.__setattr__(self, "oldest_version", oldest)

    @property
    def order(self) -> tuple[int, int]:
        return self.issued.order

    def with_members(self, members: Sequence[ScoredEpisode]) -> Self:
        """The group with only these members."""
        return replace(self, members=tuple(members))

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(t for member in self.members for t in member.trajectories)

    @property
    def is_uniform(self) -> bool:
        """Whether all members have equal rewards."""
        verdicts = {
            frozenset(
                (t.policy, t.reward, t.turn_rewards, t.turn_alternatives) for t in m.trajectories
            )
            for m in self.members
        }
        return len(self.members) > 1 and len(verdicts) == 1

    def is_idle(self, idle: IdleGroups) -> bool:
        """Whether the algorithm learns nothing from the group, by its own rule `idle`."""
        if idle is IdleGroups.NONE or not self.is_uniform:
            return False
        return idle is IdleGroups.EQUAL_REWARDS or len({m.num_turns for m in self.members}) == 1

    def to_trajectory_group(self) -> TrajectoryGroup:
        issued = self.issued
        return TrajectoryGroup(self.id, issued.task.id, self.trajectories, issued.source)


def iter_members(groups: Sequence[FinishedGroup]) -> Iterator[ScoredEpisode]:
    for group in groups:
        yield from group.members


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The groups that one step trains, with metrics of the rollouts."""

    version: int
    """Version of the weights that the step starts from."""
    finished: tuple[FinishedGroup, ...]
    metrics: Mapping[str, float]
    notices: tuple[str, ...] = ()
    """Warnings for the user, each given once a run, with its cure."""
    exhausted: bool = False
    """The tasks have run out: no further batch will come."""

    @property
    def groups(self) -> tuple[TrajectoryGroup, ...]:
        return tuple(group.to_trajectory_group() for group in self.finished)

    @property
    def num_episodes(self) -> int:
        return sum(len(group.members) for group in self.finished)

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(m.trajectories[0].episode_id for m in iter_members(self.finished))


@dataclass(slots=True)
class FailureStreak:
    """Counts the episodes in a row that gave nothing to train. At the limit the run ends with the latest error, so that
    an agent that never works does not consume the whole dataset."""

    limit: int
    num_lost: int = 0

    def end(self) -> None:
        self.num_lost = 0

    def lose(self, size: int, cause: Rejection) -> RolloutError | None:
        """Count a group of `size` that was given up. Returns the error that ends the run, once the limit is reached."""
        self.num_lost += size
        if self.num_lost < self.limit:
            return None
        return RolloutError(
            f"{self.num_lost} episodes in a row gave no group to train; "
            f"the last one dropped: {cause.reason.value}: {cause.message}"
        )
