"""The information in a batch's rewards: whether a larger step would follow a gradient or noise."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from areal_sdk.trajectory import TrajectoryGroup

COMPARED = 8
"""Size of a group that is drawn from episodes without siblings."""

Verdict = tuple[float, tuple[float | None, ...]]
"""Reward of an episode, and rewards of its turns."""


def spread(groups: Sequence[TrajectoryGroup]) -> float:
    """The share of the groups whose rewards differ, whatever an algorithm makes of them.

    Episodes without siblings are compared with the episodes of their source, as if drawn from these in groups of
    eight.
    """
    differing = 0.0
    alone: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
    for group in groups:
        verdicts: dict[str, Verdict] = {
            t.episode_id: (t.reward, t.turn_rewards) for t in group.trajectories
        }
        if len(verdicts) == 1:
            alone[group.source].update(verdicts.values())
        else:
            differing += len(set(verdicts.values())) > 1
    for counts in alone.values():
        equal = sum((count / counts.total()) ** COMPARED for count in counts.values())
        differing += counts.total() * (1.0 - equal)
    return differing / len(groups)
