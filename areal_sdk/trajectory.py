"""The trained part of episodes: token sequences, in groups of siblings.

    Episode -> Trajectory* -> TrajectoryGroup -> (algorithms.Batch)

Frozen dataclasses, as in `types`. Values per token are in arrays, because a batch may have millions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

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
class Branch:
    """A token sequence. If it begins like another sequence, it holds only the tokens after the common beginning.

    >>> trunk = Branch([1, 2, 3])
    >>> fork = Branch([7, 8], before=trunk, num_before=2)
    >>> len(fork), fork.slice(0, 4).tolist()
    (4, [1, 2, 7, 8])
    """

    tokens: Ints
    """Tokens after the first `num_before`. They cannot be written to."""
    before: "Branch | None"
    """Branch that begins with the same `num_before` tokens."""
    num_before: int

    def __init__(
        self,
        tokens: Sequence[int] | NDArray[np.integer],
        *,
        before: "Branch | None" = None,
        num_before: int = 0,
    ) -> None:
        if not 0 <= num_before <= (0 if before is None else len(before)):
            raise ValueError(f"num_before = {num_before}: the branch before has no such beginning")
        object.__setattr__(self, "tokens", _frozen(tokens, np.int32))
        object.__setattr__(self, "before", before if num_before else None)
        object.__setattr__(self, "num_before", num_before)

    def __len__(self) -> int:
        return self.num_before + len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Branch):
            return NotImplemented
        is_alike = self.num_before == other.num_before and len(self) == len(other)
        return is_alike and np.array_equal(self.whole, other.whole)

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the branch alone: the tokens before its own go with it, as one branch."""
        start = self.slice(0, self.num_before)
        return _branch_after, (start, self.tokens)

    @property
    def whole(self) -> Ints:
        """All tokens."""
        return self.slice(0, len(self))

    def slice(self, start: int, stop: int) -> Ints:
        """The tokens `[start, stop)` of the whole sequence."""
        pieces: list[Ints] = []
        branch: Branch | None = self
        while branch is not None and (start < stop or not pieces):
            kept = branch.num_before
            if stop > kept or not pieces:
                pieces.append(branch.tokens[max(start - kept, 0) : max(stop - kept, 0)])
                stop = min(stop, kept)
            branch = branch.before
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces[::-1])

    def cut(self, length: int) -> "Branch":
        """The first `length` tokens of the whole sequence. `length` must be at least `num_before`."""
        own = self.tokens[: length - self.num_before]
        return Branch(own, before=self.before, num_before=self.num_before)


def _branch_after(start: Ints, tokens: Ints) -> Branch:
    before = Branch(start) if len(start) else None
    return Branch(tokens, before=before, num_before=len(start))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Trajectory:
    """One trainable token sequence: a branch of an episode, from where it leaves earlier branches.

    Tokens that it shares with an earlier branch are context: every token is trained in the first trajectory that
    holds it. The per-token fields are arrays that cannot be written to, one number for each of `tokens`. The
    constructor takes lists for them too.
    """

    episode_id: str
    task_id: str
    tokens: Ints
    """Tokens after those that `branch` shares with another branch; all tokens of an episode's first trajectory."""
    loss_mask: Bools
    """Mask of the tokens that the policy sampled and that are trained here (and nowhere else)."""
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
    """The later turns, for each turn, that are no consequence of it: they are or follow another answer
    to the same prompt. Empty if no turn has such turns, or if turns have no rewards."""
    num_turns: int
    """Number of turns of the episode, those without a trained token included; 0: `turn_of_token` names all of them."""
    num_sampled: int
    """Number of tokens that the policy sampled in all branches of the episode, also of those that are
    not trained because they are too old or the episode was truncated; 0: all are trained here."""
    turn_lengths: tuple[int, ...]
    """Number of tokens that the policy sampled in each turn, trained here or not. Empty if no turn has
    alternatives, or if all tokens are trained here."""
    branch: Branch
    """The whole sequence. `tokens` are its end."""
    policy: str
    """Name of the policy that sampled the trained tokens, in a run with several."""

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
        turn_lengths: tuple[int, ...] = (),
        branch: Branch | None = None,
        policy: str = "",
    ) -> None:
        """Make a trajectory. If `branch` is None, `tokens` are the whole sequence."""
        if branch is None:
            branch = Branch(tokens)
        elif branch.tokens is not tokens:
            branch = Branch(tokens, before=branch.before, num_before=branch.num_before)
        tokens = branch.tokens
        given = locals()
        for name in Trajectory.__dataclass_fields__:
            value = given[name]
            dtype = PER_TOKEN.get(name)
            object.__setattr__(self, name, value if dtype is None else _frozen(value, dtype))
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
        after = f" after {self.branch.num_before} shared" if self.branch.before else ""
        size = f"{len(self.tokens)} tokens{after}, {self.num_trained} of them trained"
        return f"<Trajectory of {self.episode_id}: reward {self.reward:g}, {size}>"

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int | None:
        """The version of the oldest trained token; None when no token is trained."""
        trained = self.versions[self.loss_mask]
        return int(trained.min()) if len(trained) else None


class SampledTurn(Protocol):
    """The fields of a turn from which the per-token fields of a trajectory are made."""

    @property
    def num_prompt(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def logprobs(self) -> Sequence[float]: ...
    @property
    def versions(self) -> Sequence[int]: ...
    @property
    def temperature(self) -> float: ...


def trajectory_on(
    branch: Branch,
    trained: Mapping[int, SampledTurn],
    *,
    episode_id: str,
    task_id: str,
    reward: float,
    turn_rewards: tuple[float | None, ...],
    turn_alternatives: tuple[tuple[int, ...], ...] = (),
    num_turns: int,
    num_sampled: int,
    turn_lengths: tuple[int, ...] = (),
    policy: str = "",
) -> Trajectory:
    """The trajectory on `branch` that trains the outputs of these turns, by their indices in the episode."""
    length, start = len(branch.tokens), branch.num_before
    loss_mask = np.zeros(length, dtype=np.bool_)
    logprobs = np.zeros(length, dtype=np.float32)
    versions = np.full(length, -1, dtype=np.int32)
    temperatures = np.ones(length, dtype=np.float32)
    turn_of_token = np.full(length, -1, dtype=np.int32)
    for index, turn in trained.items():
        span = slice(turn.num_prompt - start, turn.num_tokens - start)
        loss_mask[span] = True
        logprobs[span] = turn.logprobs
        versions[span] = turn.versions
        temperatures[span] = turn.temperature
        turn_of_token[span] = index
    return Trajectory(
        episode_id=episode_id,
        task_id=task_id,
        tokens=branch.tokens,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=versions,
        temperatures=temperatures,
        turn_of_token=turn_of_token,
        reward=reward,
        turn_rewards=turn_rewards,
        turn_alternatives=turn_alternatives,
        num_turns=num_turns,
        num_sampled=num_sampled,
        turn_lengths=turn_lengths,
        branch=branch,
        policy=policy,
    )


def branches_of(trajectories: Iterable[Trajectory]) -> list[Branch]:
    """The branches of the trajectories, and the branches `before` them. Each comes after its own `before`."""
    found: dict[int, Branch] = {}
    for trajectory in trajectories:
        chain = []
        branch: Branch | None = trajectory.branch
        while branch is not None and id(branch) not in found:
            chain.append(branch)
            branch = branch.before
        found |= {id(branch): branch for branch in reversed(chain)}
    return list(found.values())


def _frozen(
    values: Sequence[object] | NDArray[np.generic], dtype: type[np.generic]
) -> NDArray[np.generic]:
    """The values as an array that nobody can write to: a copy, unless `values` is such an array already."""
    is_frozen = isinstance(values, np.ndarray) and not values.flags.writeable
    if isinstance(values, np.ndarray) and is_frozen and values.dtype == dtype:
        return values
    array = (np.asarray if is_frozen else np.array)(values, dtype=dtype).view()
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantage of an episode, as a training step saw it: how much better than expected the episode turned out."""

    advantage: float | None = None
    """Mean over the trained tokens; None if no token is trained, or if the trainer does not say."""
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
    source: str = ""
    """The task's `Task.source`, or the caller that brought the task. A group of one episode may be compared with groups
    of the same source."""

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
