"""The split of a batch by policy, and the numbers of all policies as those of one step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import Credit, TrajectoryGroup


def split(
    groups: Sequence[TrajectoryGroup], policies: Collection[str]
) -> dict[str, list[TrajectoryGroup]]:
    """The groups of each policy, which hold its own trajectories alone. A group without any is left out.

    ValueError for a trajectory of another policy: its tokens would be lost, or trained where nobody sampled them.
    """
    found = {t.policy: None for group in groups for t in group.trajectories}
    if unknown := [name for name in found if name not in policies]:
        raise ValueError(f"a batch holds tokens of {unknown}; trained: {', '.join(policies)}")
    shares: dict[str, list[TrajectoryGroup]] = {name: [] for name in policies}
    for name, share in shares.items():
        for group in groups:
            own = tuple(replace(t, policy="") for t in group.trajectories if t.policy == name)
            if own:
                share.append(replace(group, trajectories=own))
    return shares


def merged(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of each policy under its name, and of all together: counts are added, extremes stay, and other
    numbers are means over trained tokens.

    >>> one, two = {"num_trained": 3.0, "loss": 1.0}, {"num_trained": 1.0, "loss": 5.0}
    >>> merged({"planner": one, "coder": two})["loss"]
    2.0
    """
    names = {key: None for own in metrics.values() for key in own}
    whole = {
        name: _together(name, [own for own in metrics.values() if name in own]) for name in names
    }
    parts = {f"{policy}/{name}": v for policy, own in metrics.items() for name, v in own.items()}
    return whole | parts


def _together(name: str, metrics: Sequence[Mapping[str, float]]) -> float:
    values = [own[name] for own in metrics]
    if name.startswith("num_"):
        return sum(values)
    for word, choose in (("max", max), ("min", min)):
        if word in name.split("_"):
            return choose(values)
    weights = [own.get("num_trained", 0.0) for own in metrics]
    if not sum(weights):
        weights = [1.0] * len(values)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def merged_credit(credits: Sequence[Mapping[str, Credit]]) -> dict[str, Credit]:
    """The credit of each episode: its turns have that of the policy that took them, the episode their mean."""
    found: dict[str, Credit] = {}
    for credit in credits:
        for episode, own in credit.items():
            found[episode] = _both(found[episode], own) if episode in found else own
    return found


def _both(one: Credit, other: Credit) -> Credit:
    length = max(len(one.by_turn), len(other.by_turn))
    turns = [(*c.by_turn, *[None] * (length - len(c.by_turn))) for c in (one, other)]
    by_turn = tuple(a if b is None else b for a, b in zip(*turns, strict=True))
    known = [c.advantage for c in (one, other) if c.advantage is not None]
    return Credit(sum(known) / len(known) if known else None, by_turn)


def least_idle(kinds: Collection[IdleGroups]) -> IdleGroups:
    """The groups that teach none of the policies."""
    order = (IdleGroups.NONE, IdleGroups.EQUAL_EPISODES, IdleGroups.EQUAL_REWARDS)
    return next(kind for kind in order if kind in kinds)
