"""Trajectories made of the parts that an algorithm looks at."""

from collections.abc import Sequence

from areal_sdk.algorithms.advantages import (
    AdvantageEstimator,
    Baselines,
    Evidence,
    PerToken,
)
from areal_sdk.trajectory import Trajectory, TrajectoryGroup


def trajectory(
    tokens: Sequence[int],
    trained: Sequence[int],
    *,
    reward: float = 0.0,
    episode: str = "e",
    task: str = "t",
    turns: Sequence[int] | None = None,
    turn_rewards: Sequence[float | None] = (),
    logprob: float = -1.0,
    version: int = 0,
    temperature: float = 1.0,
) -> Trajectory:
    """A trajectory whose tokens at the indices `trained` were sampled."""
    mask = tuple(i in set(trained) for i in range(len(tokens)))
    turn_of = dict(zip(trained, turns if turns is not None else [0] * len(trained), strict=True))
    return Trajectory(
        episode_id=episode,
        task_id=task,
        tokens=tuple(tokens),
        loss_mask=mask,
        logprobs=tuple(logprob if m else 0.0 for m in mask),
        versions=tuple(version if m else -1 for m in mask),
        temperatures=tuple(temperature if m else 1.0 for m in mask),
        turn_of_token=tuple(turn_of.get(i, -1) for i in range(len(tokens))),
        reward=reward,
        turn_rewards=tuple(turn_rewards),
    )


def group(
    *trajectories: Trajectory, name: str = "g", task: str = "t", source: str = ""
) -> TrajectoryGroup:
    return TrajectoryGroup(name, task, tuple(trajectories), source or task)


def per_turn(episode: str, *rewards: float | None, task: str = "t") -> Trajectory:
    """Two sampled tokens a turn, with a tool's token between the turns."""
    tokens, trained, turns = [0], [], []
    for turn in range(len(rewards)):
        trained += [len(tokens), len(tokens) + 1]
        turns += [turn, turn]
        tokens += [1, 1, 9]
    total = sum(r for r in rewards if r is not None)
    return trajectory(
        tokens,
        trained,
        turns=turns,
        turn_rewards=rewards,
        reward=total,
        episode=episode,
        task=task,
    )


def estimate(
    estimator: AdvantageEstimator, groups: Sequence[TrajectoryGroup], baselines: Baselines
) -> tuple[PerToken, Baselines]:
    """Advantages and new baselines, of an estimator that reads nothing else."""
    found = estimator(groups, Evidence(baselines))
    return found.advantages, found.baselines
