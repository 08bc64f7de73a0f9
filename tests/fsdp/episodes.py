"""Seeded groups of two-turn episodes: prompt, sampled call, tool result, sampled answer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Episode, Exclusion, Outcome, Task, Turn

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


VOCABULARY = 250
TURNS, SAID, TOLD = 4, 6, 3


def thinking(rng: np.random.Generator, prompt: Sequence[int], name: str) -> Episode:
    """Every prompt forks: it leaves the thought out of what was said before.

    Beside them a turn that forks inside another's answer, an answer to the same prompt, and a turn
    that is not trained but that others share with.
    """

    def draw(count: int) -> tuple[int, ...]:
        tokens: list[int] = rng.integers(0, VOCABULARY, count).tolist()
        return tuple(tokens)

    turns: list[Turn] = []

    def add(prompt: Sequence[int], keeper: int | None, num_shared: int) -> Turn:
        logprobs = tuple((-4.0 - 3.0 * rng.random(SAID)).tolist())
        made = Turn(
            tuple(prompt)[num_shared:],
            draw(SAID),
            logprobs,
            (0,) * SAID,
            temperature=0.7 if len(turns) % 2 else 1.0,
            num_shared=num_shared,
            shares_with=keeper,
            _before=None if keeper is None else turns[keeper],
        )
        turns.append(made)
        return made

    told = tuple(prompt)
    latest = add(told, None, 0)
    for _ in range(TURNS - 1):
        keeper = turns.index(latest)
        told = (*told, *latest.output_tokens[-2:], *draw(TOLD))
        latest = add(told, keeper, latest.num_prompt)
    add(turns[0].tokens[: turns[0].num_prompt + 2], 0, turns[0].num_prompt + 2)
    add(turns[1].prompt_tokens, 1, turns[1].num_prompt)
    turns[2] = replace(turns[2], excluded=Exclusion.GREEDY)
    return Episode(name, Task("t"), tuple(turns), Outcome.scored(float(rng.random())))


def branching_groups(*, seed: int = 0) -> list[TrajectoryGroup]:
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(2):
        prompt = rng.integers(0, VOCABULARY, 8).tolist()
        episodes = [thinking(rng, prompt, f"{number}.{sibling}") for sibling in range(3)]
        rows = [t for episode in episodes for t in to_trajectories(episode)]
        groups.append(TrajectoryGroup(str(number), "t", tuple(rows)))
    return groups
