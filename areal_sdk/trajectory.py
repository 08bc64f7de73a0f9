"""What is trained of episodes: token sequences, in groups of siblings.

    Episode -> Trajectory* -> TrajectoryGroup -> (algorithms.Batch)

Plain frozen dataclasses, as in `types`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One trainable token sequence: a branch of an episode. The per-token tuples share one length."""

    episode_id: str
    task_id: str
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True where the token was sampled by the policy and is trained here (and nowhere else)."""
    logprobs: tuple[float, ...]
    """Behaviour logprob where `loss_mask`, 0.0 elsewhere."""
    versions: tuple[int, ...]
    """Version that sampled the token where `loss_mask`, -1 elsewhere."""
    temperatures: tuple[float, ...]
    """Sampling temperature where `loss_mask`, 1.0 elsewhere."""
    turn_of_token: tuple[int, ...]
    """Index of the sampling turn where `loss_mask`, -1 elsewhere."""
    reward: float
    turn_rewards: tuple[float | None, ...] = ()
    turn_alternatives: tuple[tuple[int, ...], ...] = ()
    """With turn rewards: for each turn, the later turns that are not its consequence, since they
    come from another answer to the same prompt. Empty if no turn has any."""
    num_turns: int = 0
    """Turns of the episode, those without a trained token included; 0 where `turn_of_token` names
    them all."""
    num_sampled: int = 0
    """Tokens that the policy sampled in the episode, over all its branches, also those that are not
    trained here since they are too old or the episode was truncated; 0 where all are trained."""

    def __post_init__(self) -> None:
        lengths = {
            len(self.tokens),
            len(self.loss_mask),
            len(self.logprobs),
            len(self.versions),
            len(self.temperatures),
            len(self.turn_of_token),
        }
        if len(lengths) != 1:
            raise ValueError(f"the per-token fields of a trajectory differ in length: {lengths}")

    def __repr__(self) -> str:
        size = f"{len(self.tokens)} tokens, {self.num_trained} of them trained"
        return f"<Trajectory of {self.episode_id}: reward {self.reward:g}, {size}>"

    @property
    def num_trained(self) -> int:
        return sum(self.loss_mask)

    @property
    def oldest_version(self) -> int | None:
        """None when no token is trained."""
        trained = (v for v, train in zip(self.versions, self.loss_mask, strict=True) if train)
        return min(trained, default=None)


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
