"""The models that answered the sessions of a run, compared by how their sessions were scored."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from areal_sdk import ConfigError, Episode
from areal_sdk.records import Interval, mean_of_tasks, wilson

MIXED = "several models"


@dataclass(slots=True)
class Arm:
    """The sessions that one model answered from the first request to the last."""

    name: str
    num_sessions: int = 0
    scores: list[float] = field(default_factory=list)
    """Scores of the sessions that have one."""

    @property
    def score(self) -> Interval | None:
        """The mean score with its 95 % interval; None without scores."""
        return interval_of(self.scores) if self.scores else None


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean score of an arm less that of another."""

    arm: str
    base: str
    interval: Interval

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.interval.low > 0.0 or self.interval.high < 0.0


def arms_of(scored: Iterable[tuple[Episode, float | None]]) -> dict[str, Arm]:
    """The arms by name. Sessions that several models answered are an arm of their own, since no model owns their
    scores."""
    arms: dict[str, Arm] = {}
    for episode, score in scored:
        if not episode.turns:
            continue
        models = models_of(episode)
        name = models[0] if len(models) == 1 else MIXED
        arm = arms.setdefault(name, Arm(name))
        arm.num_sessions += 1
        if score is not None:
            arm.scores.append(score)
    return dict(sorted(arms.items()))


def models_of(episode: Episode) -> Sequence[str]:
    """The policies that answered an episode; of another provider's answers the models that were asked for."""
    found: dict[str, None] = {}
    for turn in episode.turns:
        request = turn.details.get("request")
        asked = request.get("model") if isinstance(request, Mapping) else None
        found[turn.policy or str(asked or "the model")] = None
    return [*found]


def differences(arms: Mapping[str, Arm], base: str = "") -> Sequence[Difference]:
    """The difference of each arm from `base`, or from the first arm. Arms without scores have none."""
    named = [name for name in arms if name != MIXED]
    if base and base not in named:
        raise ConfigError(
            f"--base {base!r} answered no session of this run; known: {', '.join(named)}"
        )
    scores = {name: score for name in named if (score := arms[name].score) is not None}
    base = base or next(iter(scores), "")
    if base not in scores:
        return ()
    return [
        Difference(name, base, difference_of(score, scores[base]))
        for name, score in scores.items()
        if name != base
    ]


def interval_of(scores: Sequence[float]) -> Interval:
    """The mean of the scores of independent sessions. Scores of 0 and 1 are a proportion."""
    if set(scores) <= {0.0, 1.0}:
        return wilson(int(sum(scores)), len(scores))
    return mean_of_tasks(scores)


def difference_of(one: Interval, other: Interval) -> Interval:
    """The difference of two independent means, from their own intervals (Newcombe's method 10, for any means).

    >>> str(difference_of(wilson(56, 70), wilson(48, 80)))
    '0.200 [0.052, 0.334]'
    """
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Interval(value, low, high)
