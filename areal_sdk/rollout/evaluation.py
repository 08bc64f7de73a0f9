"""Measures an agent on tasks: success, reward and pass@k with confidence intervals.

Evaluation shares only the engine with training. Its episodes do not pass the staleness gate, are not
counted in the ledger, and delay no rollout.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Self

from areal_sdk.errors import ConfigError
from areal_sdk.records.diagnosis.cures import to_get_a_signal
from areal_sdk.records.estimates import Interval, mean_of_tasks, pass_at_k, share_of_tasks
from areal_sdk.rollout.groups import is_success
from areal_sdk.rollout.metrics import MIN_DIFFERING_SHARE, outcome_metrics
from areal_sdk.rollout.tasks import EpisodeRequest, PlaysEpisodes
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.types import Episode, OutcomeKind, Task

MAX_SOURCES = 32
"""Largest number of sources in a report by source. More names than this are hardly families of tasks."""
MIN_TASKS = 8
"""Fewest scored attempts after which a report remarks that all had the same reward: fewer may agree by chance."""
OTHER = "other"
"""Name of the tasks without a source in a report by source."""


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The result of an evaluation. Most rates are over scored episodes; `errors` counts the episodes without a verdict."""

    split: str
    num_tasks: int
    num_episodes: int
    num_scored: int
    success: Interval | None
    """Share of successful episodes (pass@1); None when none was scored."""
    reward: Interval | None
    pass_at: Mapping[int, Interval]
    """pass@k for k = 1, 2, 4 ... samples, over the tasks with at least k scored episodes. A k > 1 is left out if
    fewer than half of the tasks have k: failed episodes would then decide which tasks are measured."""
    errors: Mapping[str, int]
    """Episodes without a verdict, by error kind or `abstain`."""
    first_errors: Mapping[str, str]
    """Message of the first episode with each key of `errors`."""
    num_truncated: int
    mean_turns: float
    duration_s: float
    versions: tuple[int, int] | None = None
    """The oldest and the newest version that sampled a token; None if no token is recorded."""
    num_available: int | None = None
    """Number of tasks from which the measured ones were sampled; None if all were measured."""
    by_source: "Mapping[str, EvalReport]" = field(default_factory=dict)
    """A report for the tasks of each source, if there are several sources (`Task.source`)."""
    solved: float | None = None
    """Share of all episodes that succeeded, with every task counting alike. An episode without a verdict did not
    succeed. Weights are compared by this share: by `success`, weights could win because their failures raise."""
    num_uncalled: int = 0
    """Number of scored episodes that never called the model: their verdicts say nothing about it."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics that the episodes' outcomes carry, as `outcome/NAME`."""
    is_in_points: bool = False
    """Whether rewards are points: some episode has a reward above 1 and claims no success, so 1 does not mean success."""
    run_dir: str = ""
    """The directory with the episodes of the evaluation; empty if they were not kept."""
    pass_tasks: Mapping[int, int] = field(default_factory=dict)
    """Number of tasks behind each `pass_at[k]`. A k that all tasks have is left out."""
    num_compared: int = 0
    """Number of tasks with several scored attempts."""
    num_differing: int = 0
    """Number of the compared tasks whose rewards differ. Training in groups learns from these alone."""

    @property
    def judged(self) -> float:
        """Share of the episodes that have a verdict."""
        return self.num_scored / self.num_episodes

    @property
    def uncalled(self) -> str:
        """Says how many episodes never called the model; empty if all scored ones did.

        >>> EvalReport.from_metrics("eval", {"tasks": 4, "scored": 4, "uncalled": 3}).uncalled
        '3 of 4 episodes never called the model'
        """
        if not self.num_uncalled:
            return ""
        return f"{self.num_uncalled} of {self.num_episodes} episodes never called the model"

    @property
    def signal(self) -> str:
        """A sentence on the number of tasks whose attempts differ in their rewards; empty if nothing can be said.

        >>> EvalReport.from_metrics("eval", {"tasks": 8, "scored": 32, "compared": 8, "differing": 3}).signal
        'the attempts at 3 of 8 tasks differ in their rewards, from which training in groups learns'
        """
        success = self.success.value if self.success else 0.0
        if self.num_compared:
            said = f"the attempts at {self.num_differing} of {counted(self.num_compared, 'task')} differ in their rewards"
            if self.num_differing >= MIN_DIFFERING_SHARE * self.num_compared:
                return f"{said}, from which training in groups learns"
            return (
                f"{said}, and training in groups learns from no others: {to_get_a_signal(success)}"
            )
        is_equal = self.reward is not None and not self.reward.has_interval
        if self.num_scored < MIN_TASKS or not (is_equal or success == 0.0):
            return ""
        return (
            f"all {self.num_scored} attempts earned the same: --samples 8 says whether sampled ones differ, from "
            f"which training learns; if not, {to_get_a_signal(success)}"
        )

    @property
    def of_tasks(self) -> str:
        """The number of measured tasks, and of available ones if they are more: `100 of 500`."""
        if self.num_available is None or self.num_available == self.num_tasks:
            return str(self.num_tasks)
        return f"{self.num_tasks} of {self.num_available}"

    @classmethod
    def from_metrics(cls, split: str, numbers: Mapping[str, float]) -> Self:
        """The report that `metrics` describe. Messages of errors are not in metrics, so they are missing."""
        by_source: dict[str, dict[str, float]] = {}
        for key, value in numbers.items():
            kind, _, rest = key.partition("/")
            if kind == "source":
                source, _, name = rest.rpartition("/")
                by_source.setdefault(source, {})[name] = value
        ks = [int(key.removeprefix("pass@")) for key in numbers if re.fullmatch(r"pass@\d+", key)]
        versions = None
        if "from_version" in numbers:
            versions = (int(numbers["from_version"]), int(numbers["to_version"]))
        return cls(
            split=split,
            num_tasks=int(numbers["tasks"]),
            num_episodes=int(numbers.get("episodes", numbers["scored"])),
            num_scored=int(numbers["scored"]),
            success=_read_interval(numbers, "success"),
            reward=_read_interval(numbers, "reward"),
            pass_at={k: found for k in ks if (found := _read_interval(numbers, f"pass@{k}"))},
            num_compared=int(numbers.get("compared", 0)),
            num_differing=int(numbers.get("differing", 0)),
            pass_tasks={k: int(numbers[key]) for k in ks if (key := f"pass@{k}_tasks") in numbers},
            errors={
                key.removeprefix("errors/"): int(count)
                for key, count in numbers.items()
                if key.startswith("errors/")
            },
            first_errors={},
            num_truncated=int(numbers.get("truncated", 0)),
            mean_turns=numbers.get("turns", 0.0),
            duration_s=numbers.get("duration_s", 0.0),
            versions=versions,
            num_available=int(numbers["available"]) if "available" in numbers else None,
            by_source={source: cls.from_metrics(split, part) for source, part in by_source.items()},
            solved=numbers.get("solved"),
            num_uncalled=int(numbers.get("uncalled", 0)),
            outcome={key: value for key, value in numbers.items() if key.startswith("outcome/")},
        )

    def metrics(self) -> dict[str, float]:
        """The results for a log: a number by the name of each metric."""
        numbers = {
            "tasks": float(self.num_tasks),
            "episodes": float(self.num_episodes),
            "scored": float(self.num_scored),
            "truncated": float(self.num_truncated),
            "turns": self.mean_turns,
            "duration_s": self.duration_s,
            **{f"errors/{kind}": float(n) for kind, n in self.errors.items()},
            **{f"pass@{k}_tasks": float(n) for k, n in self.pass_tasks.items()},
            **self.outcome,
        }
        if self.num_compared:
            numbers["compared"] = float(self.num_compared)
            numbers["differing"] = float(self.num_differing)
        if self.num_uncalled:
            numbers["uncalled"] = float(self.num_uncalled)
        if self.versions is not None:
            numbers["from_version"], numbers["to_version"] = map(float, self.versions)
        if self.solved is not None:
            numbers["solved"] = self.solved
        if self.num_available is not None:
            numbers["available"] = float(self.num_available)
        estimates = {
            "success": self.success,
            "reward": self.reward,
            **{f"pass@{k}": estimate for k, estimate in self.pass_at.items()},
        }
        for name, estimate in estimates.items():
            if estimate is None:
                continue
            numbers[name] = estimate.value
            if estimate.has_interval:
                numbers[f"{name}_low"] = estimate.low
                numbers[f"{name}_high"] = estimate.high
        for source, report in self.by_source.items():
            for name in ("tasks", "scored", "success", "reward"):
                if name in (part := report.metrics()):
                    numbers[f"source/{source}/{name}"] = part[name]
        return numbers


def _read_interval(numbers: Mapping[str, float], name: str) -> Interval | None:
    if name not in numbers:
        return None
    low, high = numbers.get(f"{name}_low", -math.inf), numbers.get(f"{name}_high", math.inf)
    return Interval(numbers[name], low, high)


@dataclass(frozen=True, slots=True)
class _EvaluatedEpisode:
    """The facts of an episode that the report needs; the episode itself is not kept."""

    task_id: str
    source: str
    reward: float | None
    success: bool
    claims_success: bool
    num_turns: int
    truncated: bool
    error: str
    message: str
    versions: frozenset[int]
    metrics: Mapping[str, float]


async def evaluate_tasks(
    runner: PlaysEpisodes,
    tasks: Iterable[Task],
    *,
    split: str = "eval",
    samples: int = 1,
    max_concurrency: int = 32,
    name: str = "eval",
    on_episode: Callable[[Episode], None] | None = None,
    num_available: int | None = None,
) -> EvalReport:
    """Play every task `samples` times. `name` is part of the ids of the episodes.

    `num_available`: the number of tasks from which `tasks` were sampled.
    """
    requests = [
        EpisodeRequest(
            f"{name}.{task.id}.{sample}", task, group=f"{name}.{task.id}", sibling=sample
        )
        for task in tasks
        for sample in range(samples)
    ]
    if not requests:
        raise ConfigError(f"there are no tasks in split {split!r} to evaluate on")
    clock = asyncio.get_running_loop().time
    began = clock()
    attempts: list[_EvaluatedEpisode | None] = [None] * len(requests)
    queue = iter(enumerate(requests))

    async def play_from_queue() -> None:
        for index, request in queue:
            episode = await runner.run(request)
            attempts[index] = _summarise(episode)
            if on_episode is not None:
                on_episode(episode)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(max_concurrency, len(requests))):
            workers.create_task(play_from_queue(), name=f"evaluation {name}")
    done = [attempt for attempt in attempts if attempt is not None]
    return replace(
        _report(done, split=split, samples=samples, duration_s=clock() - began),
        num_available=num_available,
        by_source=_by_source(done, split=split, samples=samples, duration_s=clock() - began),
    )


def _summarise(episode: Episode) -> _EvaluatedEpisode:
    outcome = episode.outcome
    scored = outcome.kind is OutcomeKind.REWARD and outcome.reward is not None
    return _EvaluatedEpisode(
        task_id=episode.task.id,
        source=episode.task.source,
        reward=outcome.reward if scored else None,
        success=scored and is_success(episode),
        claims_success=outcome.success is not None,
        num_turns=len(episode.turns),
        truncated=episode.truncated,
        error="" if scored else (outcome.error.value if outcome.error else "abstain"),
        message=outcome.message,
        versions=frozenset(version for turn in episode.turns for version in turn.versions),
        metrics=outcome.reported,
    )


def _by_source(
    attempts: Sequence[_EvaluatedEpisode], *, split: str, samples: int, duration_s: float
) -> Mapping[str, EvalReport]:
    """A report for each source; empty for fewer than two sources or more than `MAX_SOURCES`."""
    sources = sorted({attempt.source for attempt in attempts}, key=lambda name: (not name, name))
    if not 2 <= len(sources) <= MAX_SOURCES:
        return {}
    return {
        source or OTHER: _report(
            [attempt for attempt in attempts if attempt.source == source],
            split=split,
            samples=samples,
            duration_s=duration_s,
        )
        for source in sources
    }


def _report(
    attempts: Sequence[_EvaluatedEpisode], *, split: str, samples: int, duration_s: float
) -> EvalReport:
    by_task: dict[str, list[_EvaluatedEpisode]] = {attempt.task_id: [] for attempt in attempts}
    errors: Counter[str] = Counter()
    first_errors: dict[str, str] = {}
    for attempt in attempts:
        if attempt.error:
            errors[attempt.error] += 1
            first_errors.setdefault(attempt.error, attempt.message)
        else:
            by_task[attempt.task_id].append(attempt)
    scored = [group for group in by_task.values() if group]
    compared = [group for group in scored if len(group) > 1]
    num_attempts = Counter(attempt.task_id for attempt in attempts)
    versions = frozenset[int]().union(*(attempt.versions for attempt in attempts))
    pass_at, pass_tasks = _pass_at(scored, samples, num_tasks=len(by_task))
    return EvalReport(
        split=split,
        num_tasks=len(by_task),
        num_episodes=len(attempts),
        num_scored=sum(map(len, scored)),
        success=_success(scored),
        reward=mean_of_tasks([fmean(_rewards(group)) for group in scored]) if scored else None,
        pass_at=pass_at,
        pass_tasks=pass_tasks,
        errors=dict(errors),
        first_errors=first_errors,
        num_truncated=sum(attempt.truncated for attempt in attempts),
        mean_turns=fmean(attempt.num_turns for attempt in attempts),
        duration_s=duration_s,
        versions=(min(versions), max(versions)) if versions else None,
        solved=fmean(
            sum(attempt.success for attempt in group) / num_attempts[task]
            for task, group in by_task.items()
        ),
        num_compared=len(compared),
        num_differing=sum(len(set(_rewards(group))) > 1 for group in compared),
        num_uncalled=sum(not attempt.error and not attempt.num_turns for attempt in attempts),
        outcome=outcome_metrics(attempt.metrics for attempt in attempts),
        is_in_points=any(
            attempt.reward is not None and attempt.reward > 1.0 and not attempt.claims_success
            for attempt in attempts
        ),
    )


def _success(scored: Sequence[Sequence[_EvaluatedEpisode]]) -> Interval | None:
    """The share of successful attempts, every task counting alike."""
    if not scored:
        return None
    rates = [fmean(attempt.success for attempt in group) for group in scored]
    return share_of_tasks(rates, num_attempts=sum(map(len, scored)))


def _pass_at(
    scored: Sequence[Sequence[_EvaluatedEpisode]], samples: int, *, num_tasks: int
) -> tuple[dict[int, Interval], dict[int, int]]:
    """pass@k by k, and by k the number of tasks behind it if they are fewer than `num_tasks`."""
    result: dict[int, Interval] = {}
    counts: dict[int, int] = {}
    k = 1
    while k <= samples:
        groups = [group for group in scored if len(group) >= k]
        if groups and (k == 1 or 2 * len(groups) >= num_tasks):
            chances = [
                pass_at_k(len(group), sum(attempt.success for attempt in group), k)
                for group in groups
            ]
            tried = sum(len(group) // k for group in groups)
            result[k] = share_of_tasks(chances, num_attempts=tried)
            if len(groups) < num_tasks:
                counts[k] = len(groups)
        k *= 2
    return result, counts


def _rewards(group: Sequence[_EvaluatedEpisode]) -> list[float]:
    return [attempt.reward for attempt in group if attempt.reward is not None]
