"""Seeded groups of two-turn episodes: prompt, sampled call, tool result, sampled answer."""

from collections.abc import Sequence

import numpy as np

from areal_sdk.trajectory import Trajectory, TrajectoryGroup

VOCABULARY = 250
PROMPT, CALL, RESULT, ANSWER, TRAILER = 20, 4, 5, 6, 2


def make_trajectory(
    rng: np.random.Generator,
    prompt: Sequence[int],
    *,
    episode: str,
    task: str,
    reward: float,
    call: Sequence[int] | None = None,
    temperature: float = 1.0,
    version: int = 0,
    logprob: float | None = None,
) -> Trajectory:
    def draw(count: int) -> list[int]:
        tokens: list[int] = rng.integers(0, VOCABULARY, count).tolist()
        return tokens

    tokens = [*prompt, *(call or draw(CALL)), *draw(RESULT), *draw(ANSWER), *draw(TRAILER)]
    turns = [-1] * len(prompt) + [0] * CALL + [-1] * RESULT + [1] * ANSWER + [-1] * TRAILER
    mask = [turn >= 0 for turn in turns]
    return Trajectory(
        episode_id=episode,
        task_id=task,
        tokens=tuple(tokens),
        loss_mask=tuple(mask),
        logprobs=tuple(
            (float(-4.0 - 3.0 * rng.random()) if logprob is None else logprob) if m else 0.0
            for m in mask
        ),
        versions=tuple(version if m else -1 for m in mask),
        temperatures=tuple(temperature if m else 1.0 for m in mask),
        turn_of_token=tuple(turns),
        reward=reward,
    )


def make_groups(
    num_groups: int = 3,
    size: int = 4,
    *,
    seed: int = 0,
    version: int = 0,
    same_reward: bool = False,
) -> list[TrajectoryGroup]:
    """Siblings share their prompt, two of each group also their call; one samples at T = 0.7."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        prompt = rng.integers(0, VOCABULARY, PROMPT).tolist()
        call = rng.integers(0, VOCABULARY, CALL).tolist()
        members = [
            make_trajectory(
                rng,
                prompt,
                episode=f"{g}-{s}",
                task=f"task-{g}",
                reward=1.0 if same_reward else float(rng.random()),
                call=call if s < 2 else None,
                temperature=0.7 if s == 1 else 1.0,
                version=version,
            )
            for s in range(size)
        ]
        groups.append(TrajectoryGroup(f"g{g}", f"task-{g}", tuple(members), f"task-{g}"))
    return groups
