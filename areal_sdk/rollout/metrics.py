"""Metrics of a batch and of the latest episodes, and warnings about biases."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from areal_sdk.records.diagnosis.cures import LIMITS, Lengths, to_get_a_signal
from areal_sdk.rollout.groups import FinishedGroup, iter_members
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.telemetry.metrics import never_called, tool_use

WINDOW = 512
"""Number of latest episodes that the rates cover."""
MIN_EPISODES = 64
"""Fewest episodes after which their rates may cause a warning."""
MAX_STALE_SHARE = 0.10
MAX_LOST_SHARE = 0.05
MAX_TRUNCATED_SHARE = 0.5
FIRST_GROUPS = 32
"""Number of groups at the start of a run that tell whether there is anything to learn from."""
MIN_DIFFERING_SHARE = 0.1

_UNTOLD = "and are not trained: what the model did wrong there escapes the reward. "
_LOST = {
    "agent_error_share": (
        (DropReason.ERROR_AGENT,),
        f"ended in an exception of the agent {_UNTOLD}"
        "Catch what malformed output can raise, or set rollout.on_agent_error to a reward",
    ),
    "reward_error_share": (
        (DropReason.ERROR_REWARD,),
        f"have a reward that raised or ran out of time {_UNTOLD}"
        "Let it return a low number for what it cannot read; a slow one needs more of "
        "rollout.reward_timeout_s",
    ),
    "environment_error_share": (
        (DropReason.ERROR_ENVIRONMENT,),
        f"ended in an error of the environment {_UNTOLD}"
        "Let its step answer what it cannot read with a message and a low reward",
    ),
    "timeout_share": (
        (DropReason.ERROR_TIMEOUT,),
        "ran out of time and are not trained: the policy is not told that they took too long. Bound "
        "them by rollout.max_turns or rollout.max_episode_tokens, which are scored, or raise "
        "rollout.episode_timeout_s",
    ),
    "unjudged_share": (
        (DropReason.ABSTAINED, DropReason.TRUNCATED),
        "got no reward and are not trained; the last episodes of the run directory say why. If they "
        "ran into a limit, score them when it comes, or raise rollout.max_turns",
    ),
}
"""Drop reasons and warning of each metric of episodes without a reward."""


def share_without_reward(dropped: Mapping[DropReason, int], *, num_rewarded: int) -> float:
    """The share of the episodes that ended without the reward that they should have had.

    >>> dropped = {DropReason.ABSTAINED: 2, DropReason.ERROR_REWARD: 1, DropReason.STALE: 5}
    >>> share_without_reward(dropped, num_rewarded=9)
    0.25
    """
    lost = sum(dropped.get(reason, 0) for reasons, _ in _LOST.values() for reason in reasons)
    return lost / (lost + num_rewarded) if lost else 0.0


class RecentEpisodes:
    """Rates over the latest `WINDOW` episodes. Memory is constant."""

    def __init__(self) -> None:
        self._ended: deque[DropReason | None] = deque(maxlen=WINDOW)
        self._durations: deque[float] = deque(maxlen=WINDOW)
        self._cut: deque[bool] = deque(maxlen=WINDOW)
        """Whether a limit ended the episode, for each of the latest episodes with a reward."""
        self._sampled: deque[int] = deque(maxlen=MIN_EPISODES)
        """Sampled tokens of the latest episodes."""
        self._lengths: Lengths | None = None
        """Lengths of the first `MIN_EPISODES` episodes."""
        self._fates: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
        self._num_offered_tools = self._num_called_tools = 0
        """Numbers of episodes that were offered tools, and that called one, since the run began or was resumed."""
        self._first: list[bool] = []
        """Whether the rewards differ, for each of the first groups."""
        self._succeeded: list[bool] = []
        self._said: set[str] = set()

    def grouped(self, groups: Sequence[FinishedGroup]) -> None:
        """Note that a batch took these groups. Remember of the first `FIRST_GROUPS` groups whether their rewards differ."""
        for group in groups:
            if len(group.members) > 1 and len(self._first) < FIRST_GROUPS:
                self._first.append(not group.is_uniform)
                self._succeeded += [member.success for member in group.members]

    def kept(
        self,
        duration_s: float,
        *,
        truncated: bool,
        num_sampled: int = 0,
        called_tools: bool | None = None,
    ) -> None:
        """Note an episode that ended with a reward, perhaps at a limit."""
        self._num_offered_tools += called_tools is not None
        self._num_called_tools += called_tools is True
        self._ended.append(None)
        self._cut.append(truncated)
        self._sampled.append(num_sampled)
        if self._lengths is None and len(self._cut) == MIN_EPISODES:
            self._lengths = self._latest_lengths()
        self._durations.append(duration_s)

    def rejected(self, reason: DropReason, duration_s: float) -> None:
        """Note an episode that ended and is not trained."""
        self._ended.append(reason)
        self._durations.append(duration_s)

    def stopped(self, duration_s: float) -> None:
        """Note a running episode that was stopped because no step could train it any more."""
        self._durations.append(duration_s)
        self.aged(duration_s, stale=True)

    def aged(self, duration_s: float, *, stale: bool) -> None:
        """Note an accepted episode that was taken into a batch, or dropped as too old."""
        self._fates.append((duration_s, stale))

    def _latest_lengths(self) -> Lengths:
        return Lengths(fmean(self._sampled), _share([*self._cut][-MIN_EPISODES:]))

    @property
    def lost_shares(self) -> Mapping[str, float]:
        """Shares of the latest episodes that ended without a reward, by metric: each metric stands for some drop reasons."""
        return {
            name: _share([reason in reasons for reason in self._ended])
            for name, (reasons, _) in _LOST.items()
        }

    @property
    def stale_share(self) -> float:
        return _share([stale for _, stale in self._fates])

    def metrics(self) -> Mapping[str, float]:
        """Rates over the latest episodes.

        The drop rates of short and long episodes show whether dropping biases the policy.
        """
        by_duration = [stale for _, stale in sorted(self._fates)]
        quarter = max(1, len(by_duration) // 4)
        return {
            **self.lost_shares,
            "stale_share": self.stale_share,
            "stale_share_shortest_quarter": _share(by_duration[:quarter]),
            "stale_share_longest_quarter": _share(by_duration[-quarter:]),
            **_percentiles("ended_duration_s", list(self._durations)),
        }

    def notices(self) -> tuple[str, ...]:
        """New warnings, each with its cure; each is returned once a run."""
        found: dict[str, str] = {}
        if len(self._ended) >= MIN_EPISODES:
            for name, share in self.lost_shares.items():
                if share > MAX_LOST_SHARE:
                    found[name] = f"{share:.0%} of the latest episodes {_LOST[name][1]}"
        if len(self._fates) >= MIN_EPISODES and self.stale_share > MAX_STALE_SHARE:
            found["stale"] = (
                f"{self.stale_share:.0%} of the latest episodes were dropped as too old, "
                f"{self.metrics()['stale_share_longest_quarter']:.0%} of the longest quarter: the "
                "policy is pushed towards short episodes. Raise rollout.wait_s or "
                "rollout.max_staleness, or lower rollout.max_inflight"
            )
        if self._lengths and (grew := self._latest_lengths().growth_since(self._lengths)):
            found["truncated"] = (
                f"{grew}: lower trainer.trust_region or trainer.learning_rate, and let an episode without an end earn "
                f'less (rollout.truncated = "score"); or raise {LIMITS}, if answers are meant to grow'
            )
        elif len(self._cut) >= MIN_EPISODES and _share(self._cut) > MAX_TRUNCATED_SHARE:
            found["truncated"] = (
                f"{_share(self._cut):.0%} of the latest episodes ran into a limit of turns, tokens or "
                "context before they had ended: raise rollout.max_turns, rollout.max_new_tokens or "
                "rollout.max_episode_tokens, or choose what rollout.truncated does with them"
            )
        if self._num_offered_tools >= MIN_EPISODES and not self._num_called_tools:
            found["tools"] = never_called(self._num_offered_tools)
        if len(self._first) == FIRST_GROUPS and _share(self._first) < MIN_DIFFERING_SHARE:
            found["signal"] = (
                f"{sum(self._first)} of the first {FIRST_GROUPS} groups have rewards that differ, and the others teach "
                f"nothing: {to_get_a_signal(_share(self._succeeded))}"
            )
        new = {key: text for key, text in found.items() if key not in self._said}
        self._said.update(new)
        return tuple(new.values())


def batch_metrics(groups: Sequence[FinishedGroup], *, version: int) -> Mapping[str, float]:
    """Rewards, staleness and lengths of the episodes in a batch."""
    members = list(iter_members(groups))
    if not members:
        return {"groups": 0.0, "episodes": 0.0}
    ages = [version - m.oldest_version for m in members if m.oldest_version is not None]
    return {
        "groups": float(len(groups)),
        "episodes": float(len(members)),
        "uniform_groups": float(sum(group.is_uniform for group in groups)),
        "reward": fmean(m.reward for m in members),
        "reward_std": pstdev([m.reward for m in members]),
        "success": fmean(m.success for m in members),
        "staleness": fmean(ages) if ages else 0.0,
        "staleness_max": float(max(ages, default=0)),
        "turns": fmean(m.num_turns for m in members),
        "sampled_tokens": fmean(m.num_sampled for m in members),
        "truncated": fmean(m.truncated for m in members),
        **tool_use(m.called_tools for m in members),
        **_percentiles("duration_s", [m.duration_s for m in members]),
        **outcome_metrics(m.metrics for m in members),
        **_by_source(groups),
    }


MAX_OUTCOME_METRICS = 32
"""Largest number of metrics of outcomes. If there are more names, such as names of tasks, those that most episodes
have are kept."""


def outcome_metrics(outcomes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The means of the metrics of `Outcome`s as `outcome/NAME`, each over the episodes that have it.

    >>> outcome_metrics([{"searches": 1.0, "found": 0.0}, {"searches": 2.0}, {"searches": float("nan")}])
    {'outcome/found': 0.0, 'outcome/searches': 1.5}
    """
    values: dict[str, list[float]] = {}
    for metrics in outcomes:
        for name, value in metrics.items():
            if math.isfinite(value):
                values.setdefault(name, []).append(value)
    kept = sorted(values, key=lambda name: (-len(values[name]), name))[:MAX_OUTCOME_METRICS]
    return {f"outcome/{name}": fmean(values[name]) for name in sorted(kept)}


MAX_SOURCES = 20
"""Largest number of sources with metrics of their own. More names than this are hardly sources of a mixture."""


def _by_source(groups: Sequence[FinishedGroup]) -> Mapping[str, float]:
    """The reward and the number of episodes of each source; empty for one source, or more than `MAX_SOURCES`."""
    by_source: dict[str, list[FinishedGroup]] = {}
    for group in groups:
        by_source.setdefault(group.issued.task.source or "other", []).append(group)
    if not 2 <= len(by_source) <= MAX_SOURCES:
        return {}
    found: dict[str, float] = {}
    for source, theirs in sorted(by_source.items()):
        members = list(iter_members(theirs))
        found[f"source/{source}/reward"] = fmean(m.reward for m in members)
        found[f"source/{source}/episodes"] = float(len(members))
    return found


def _share(claims: Collection[bool]) -> float:
    return sum(claims) / len(claims) if claims else 0.0


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"{name}_p{p}": ordered[round(last * p / 100)] for p in (50, 90, 99)}
