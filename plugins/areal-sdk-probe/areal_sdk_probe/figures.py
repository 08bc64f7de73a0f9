"""The figures of a probe: pure functions of what was played."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from areal_sdk import Episode
from areal_sdk_probe.playing import Played, Row

SAME = 1e-6
"""Difference up to which rewards are equal."""
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Groups:
    """The rewards of groups: the attempts at each task."""

    compared: int
    """Tasks with several attempts that got a reward."""
    differing: int
    """Tasks whose rewards differ. The others teach nothing."""
    spread: float
    """Standard deviation of the rewards within a group."""
    same_answers: float
    """Share of the groups in which all attempts gave the same answers."""
    too_hard: float
    """Share of the tasks at which no attempt succeeded."""
    too_easy: float
    """Share of the tasks at which all attempts did."""
    repeated: float
    """Share of the tasks that ask what an earlier one asks."""

    @property
    def share(self) -> float:
        return self.differing / self.compared if self.compared else 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """The differences between rewards of the same answers."""

    replays: int
    compared: int
    """Attempts whose answers were scored more than once."""
    unequal: int
    """Attempts whose answers earned different rewards."""
    spread: float
    """Standard deviation of the rewards of the same answers."""
    share: float
    """Part of the variance within groups that this noise explains."""
    lost: int
    """Replayed attempts that left their record, or got no reward this time."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of a probe."""

    groups: Groups
    noise: Noise
    lengths: Mapping[str, Mapping[str, float]]
    """Percentiles of sampled tokens, turns and seconds of an episode."""
    truncated: float
    """Share of the episodes that a limit cut."""
    tools_offered: int
    """Turns that could call a tool."""
    tools_called: int
    """Turns with a call that parsed."""
    forks: Mapping[str, int]
    """Turns that do not continue the turn before, by cause."""
    errors: Mapping[str, int]
    """Episodes without a reward, by kind."""
    episodes_per_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(played: Played) -> Figures:
    turns = [turn for episode in played.episodes for turn in episode.turns]
    offered = [turn for turn in turns if turn.offers_tools]
    report, rows = played.report, played.rows
    return Figures(
        groups=groups_of(played.episodes, rows),
        noise=noise_of(played.episodes, played.replays),
        lengths={
            "tokens": percentiles([row["num_tokens"] for row in rows]),
            "turns": percentiles([row["num_turns"] for row in rows]),
            "seconds": percentiles([row["duration_s"] for row in rows]),
        },
        truncated=fmean(episode.truncated for episode in played.episodes),
        tools_offered=len(offered),
        tools_called=sum(bool(turn.message.get("tool_calls")) for turn in offered),
        forks=Counter(turn.fork.value for turn in turns if turn.fork is not None),
        errors=dict(report.errors),
        episodes_per_s=len(rows) / max(report.duration_s, 1e-9),
    )


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The percentiles of the values, by name.

    >>> percentiles([3, 1, 2])
    {'p50': 2, 'p90': 3, 'p99': 3}
    """
    ordered = sorted(values)
    return {f"p{p}": ordered[round((len(ordered) - 1) * p / 100)] for p in PERCENTILES}


def groups_of(episodes: Sequence[Episode], rows: Sequence[Row]) -> Groups:
    """The figures of the groups; `rows` are those of the episodes."""
    groups: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.group].append(episode)
    scored = [[e.reward for e in group if e.reward is not None] for group in groups.values()]
    compared = [rewards for rewards in scored if len(rewards) > 1]
    rates = [fmean(_succeeded(e) for e in group) for group in groups.values()]
    keys = {row["task_id"]: row["task_key"] for row in rows}
    answers = [{_answers(e) for e in group} for group in groups.values() if len(group) > 1]
    return Groups(
        compared=len(compared),
        differing=sum(_differ(rewards) for rewards in compared),
        spread=_root_mean_variance(compared),
        same_answers=fmean(len(found) == 1 for found in answers) if answers else 0.0,
        too_hard=fmean(rate == 0.0 for rate in rates),
        too_easy=fmean(rate == 1.0 for rate in rates),
        repeated=1.0 - len({*keys.values()}) / len(keys),
    )


def noise_of(episodes: Sequence[Episode], replays: Sequence[Sequence[Episode]]) -> Noise:
    """Compare rewards of the same answers to the same task: in the play, and in the replays."""
    found: defaultdict[tuple[str, Any], list[float]] = defaultdict(list)
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        if episode.reward is not None:
            found[_place(episode)].append(episode.reward)
            groups[episode.group].append(episode.reward)
    first = {place: len(rewards) for place, rewards in found.items()}
    lost = 0
    for episode in (one for replay in replays for one in replay):
        if episode.reward is None or _place(episode) not in found:
            lost += 1
        else:
            found[_place(episode)].append(episode.reward)
    again = {place: rewards for place, rewards in found.items() if len(rewards) > 1}
    spread = _root_mean_variance(list(again.values()))
    whole = _root_mean_variance([rewards for rewards in groups.values() if len(rewards) > 1])
    scored = sum(first.values())
    return Noise(
        replays=len(replays),
        compared=sum(first[place] for place in again),
        unequal=sum(first[place] for place, rewards in again.items() if _differ(rewards)),
        spread=spread,
        share=min(1.0, (spread / whole) ** 2) if whole > SAME else 0.0,
        lost=max(0, lost - len(replays) * (len(episodes) - scored)),
    )


def _place(episode: Episode) -> tuple[str, Any]:
    """The task by its content, since tasks that ask the same share their recorded answers; and the answers."""
    task = episode.task
    asked = json.dumps(dict(task.data), sort_keys=True, default=str) if task.data else task.id
    return asked, _answers(episode)


def _answers(episode: Episode) -> tuple[tuple[int, ...], ...]:
    """All that the model said. Turns that ran side by side may be recorded in any order."""
    return tuple(sorted(turn.output_tokens for turn in episode.turns))


def _succeeded(episode: Episode) -> bool:
    success = episode.outcome.success
    return success if success is not None else episode.reward == 1.0


def _differ(rewards: Sequence[float]) -> bool:
    return max(rewards) - min(rewards) > SAME


def _root_mean_variance(groups: Sequence[Sequence[float]]) -> float:
    return sqrt(fmean(variance(rewards) for rewards in groups)) if groups else 0.0
