"""What is trained of episodes: token sequences, in groups of siblings.

    Episode -> Trajectory* -> TrajectoryGroup -> (algorithms.Batch)

Frozen dataclasses, as in `types`. What there is of every token is an array: a batch may have millions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

PER_TOKEN = {
    "tokens": np.int32,
    "loss_mask": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "temperatures": np.float32,
    "turn_of_token": np.int32,
}
"""The arrays of a trajectory, which share one length."""


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Trajectory:
    """One trainable token sequence: a branch of an episode.

    The per-token fields are arrays that cannot be written to. The constructor takes lists for them too.
    """

    episode_id: str
    task_id: str
    tokens: Ints
    loss_mask: Bools
    """True where the token was sampled by the policy and is trained here (and nowhere else)."""
    logprobs: Floats
    """Behaviour logprob where `loss_mask`, 0.0 elsewhere."""
    versions: Ints
    """Version that sampled the token where `loss_mask`, -1 elsewhere."""
    temperatures: Floats
    """Sampling temperature where `loss_mask`, 1.0 elsewhere."""
    turn_of_token: Ints
    """Index of the sampling turn where `loss_mask`, -1 elsewhere."""
    reward: float
    turn_rewards: tuple[float | None, ...]
    turn_alternatives: tuple[tuple[int, ...], ...]
    """With turn rewards: for each turn, the later turns that are not its consequence, since they
    come from another answer to the same prompt. Empty if no turn has any."""
    num_turns: int
    """Turns of the episode, those without a trained token included; 0 where `turn_of_token` names
    them all."""
    num_sampled: int
    """Tokens that the policy sampled in the episode, over all its branches, also those that are not
    trained here since they are too old or the episode was truncated; 0 where all are trained."""

    def __init__(
        self,
        episode_id: str,
        task_id: str,
        tokens: Sequence[int] | Ints,
        loss_mask: Sequence[bool] | Bools,
        logprobs: Sequence[float] | Floats,
        versions: Sequence[int] | Ints,
        temperatures: Sequence[float] | Floats,
        turn_of_token: Sequence[int] | Ints,
        reward: float,
        turn_rewards: tuple[float | None, ...] = (),
        turn_alternatives: tuple[tuple[int, ...], ...] = (),
        num_turns: int = 0,
        num_sampled: int = 0,
    ) -> None:
        given = locals()
        for field in fields(self):
            value = given[field.name]
            dtype = PER_TOKEN.get(field.name)
            object.__setattr__(self, field.name, value if dtype is None else _frozen(value, dtype))
        lengths = {len(given[name]) for name in PER_TOKEN}
        if len(lengths) != 1:
            raise ValueError(f"the per-token fields of a trajectory differ in length: {lengths}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(
            np.array_equal(mine, theirs) if field.name in PER_TOKEN else mine == theirs
            for field in fields(self)
            for mine, theirs in [(getattr(self, field.name), getattr(other, field.name))]
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def __repr__(self) -> str:
        size = f"{len(self.tokens)} tokens, {self.num_trained} of them trained"
        return f"<Trajectory of {self.episode_id}: reward {self.reward:g}, {size}>"

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int | None:
        """None when no token is trained."""
        trained = self.versions[self.loss_mask]
        return int(trained.min()) if len(trained) else None


def _frozen(
    values: Sequence[object] | NDArray[np.generic], dtype: type[np.generic]
) -> NDArray[np.generic]:
    """An array that nobody writes to: a copy, unless nobody could write to what was given."""
    is_frozen = isinstance(values, np.ndarray) and not values.flags.writeable
    array = (np.asarray if is_frozen else np.array)(values, dtype=dtype).view()
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class Credit:
    """How much better than expected an episode turned out, as a training step saw it."""

    advantage: float | None = None
    """Mean of its trained tokens; None if no token is trained, or if the trainer does not say."""
    by_turn: tuple[float | None, ...] = ()
    """Mean of the trained tokens of each turn, up to the last turn that has any."""


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """Sibling episodes of one task; advantages are relative within it.

    An episode with branches brings several trajectories: count episodes by id, not rows.
    """

    id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]

    def __repr__(self) -> str:
        rewards = {t.episode_id: f"{t.reward:g}" for t in self.trajectories}
        listed = " ".join([*rewards.values()][:16]) + (" ..." if len(rewards) > 16 else "")
        size = f"{len(rewards)} episodes in {len(self.trajectories)} trajectories"
        return f"<TrajectoryGroup {self.id} of {self.task_id}: {size}, rewards {listed or 'none'}>"

    @property
    def num_episodes(self) -> int:
        return len({t.episode_id for t in self.trajectories})

    @property
    def oldest_version(self) -> int | None:
        versions = (t.oldest_version for t in self.trajectories)
        return min((v for v in versions if v is not None), default=None)
