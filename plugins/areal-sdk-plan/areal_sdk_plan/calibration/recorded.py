"""Calls and steps of a run directory, as arrays for fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from areal_sdk import ConfigError, Episode, Run
from areal_sdk.flow import DropReason
from areal_sdk_plan.workload import EpisodeShape, TurnShape, Workload

WARM_STEPS = 3
"""First steps of a run, in which everything is computed for the first time."""
MIN_STEPS = 8
"""Fewest steps after these: a shorter run is too short to calibrate from."""
MIN_EPISODES = 32
MAX_EPISODES = 3000
"""Maximum number of episodes that are read, the newest: more would not make the fit better."""
_STOPPED = (
    DropReason.STALE,
    DropReason.ROLLED_BACK,
    DropReason.CANCELLED,
    DropReason.GROUP_INCOMPLETE,
)
"""Reasons to drop an episode of which only a beginning was played."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model call of a run."""

    began_at: float
    """Unix time."""
    first_at: float
    """Unix time at which the first token came."""
    ended_at: float
    num_computed: int
    """Prompt tokens that the engine computed."""
    num_output: int


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A finished or running run: settings, steps after the first ones, episodes, calls."""

    path: str
    config: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    calls: Sequence[RecordedCall]
    workload: Workload

    @classmethod
    def read(cls, run: Run, *, least_steps: int = MIN_STEPS) -> "RecordedRun":
        """Read a run. ConfigError if it has fewer than `least_steps` steps after the first ones."""
        steps = run.metrics()
        if len(steps) < WARM_STEPS + least_steps:
            raise ConfigError(
                f"{run.path} has {len(steps)} steps; a calibration needs "
                f"{WARM_STEPS + least_steps}: let it run on ({run.how_to_resume()}), or give a "
                "table of hardware (--model, --gpu)"
            )
        steps = steps[WARM_STEPS - 1 :]
        played = _read_episodes(run)
        if len(played) < MIN_EPISODES:
            raise ConfigError(
                f"{run.path} has {len(played)} recorded episodes; a calibration needs "
                f"{MIN_EPISODES}: let the run go on, or give a table of hardware"
            )
        calls = [call for episode, ended_at in played for call in _calls(episode, ended_at)]
        return cls(
            str(run.path),
            run.settings,
            steps,
            sorted(calls, key=lambda call: call.began_at),
            Workload(
                _groups(played), _idle_share(steps), trained_share=_trained_share(played, steps)
            ),
        )

    @property
    def engine_options(self) -> Mapping[str, Any]:
        """The settings of its kind of engine, `[engine.NAME]`."""
        name = self.config.get("engine", {}).get("name", "local")
        options: Mapping[str, Any] = self.config.get("options", {}).get(f"engine.{name}", {})
        return options

    def column(self, name: str, *, default: float | None = None) -> Floats:
        """A metric over the steps; ConfigError where the run does not have it."""
        values = [row.get(name, default) for row in self.steps]
        if None in values:
            raise ConfigError(
                f"{self.path} has no metric {name!r}: calibrate from a run of the built-in trainer"
            )
        return np.array(values, dtype=np.float64)

    @property
    def began_at(self) -> float:
        """Unix time at the end of the last step that is not counted."""
        return float(self.steps[0]["time"])

    @property
    def lasted_s(self) -> float:
        return float(self.steps[-1]["train_seconds"] - self.steps[0]["train_seconds"])

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.lasted_s / (len(self.steps) - 1)

    def step_noise(self) -> float:
        """Relative standard error of `step_s`, by the scatter of the steps."""
        times = np.diff(self.column("train_seconds"))
        return float(times.std(ddof=1) / times.mean() / np.sqrt(len(times)))

    def cpu_used(self, process: str) -> float | None:
        """CPU seconds of a process over the counted steps; None where it is not on this machine."""
        name = f"train/cpu_{process}_s"
        if name not in self.steps[0] or name not in self.steps[-1]:
            return None
        return float(self.steps[-1][name] - self.steps[0][name])

    def counted_calls(self) -> list[RecordedCall]:
        """Calls that ended during the counted steps."""
        last = float(self.steps[-1]["time"])
        return [call for call in self.calls if self.began_at <= call.ended_at <= last]


def _read_episodes(run: Run) -> list[tuple[Episode, float]]:
    """Whole training episodes and when they ended; only as far as none of their time is missing.

    What still ran at the end is not recorded, and long episodes are more often among it. So of the
    groups that began late none counts.
    """
    whole = [
        row
        for row in reversed(run.episodes())
        if row["split"] == "train"
        and (row["dropped"] not in _STOPPED or row["reward"] is not None)  # dropped later
    ]
    newest = whole[:MAX_EPISODES]
    if not newest:
        return []
    last = max(row["time"] for row in newest)
    longest = max(row["duration_s"] for row in newest)
    early = [row for row in newest if row["time"] - row["duration_s"] <= last - longest]
    kept = early if len(early) >= max(MIN_EPISODES, len(newest) // 4) else newest
    ended_at = [row["time"] for row in kept]
    return list(zip(run.whole(kept), ended_at, strict=True))


def _calls(episode: Episode, ended_at: float) -> list[RecordedCall]:
    opened_at = ended_at - episode.duration_s
    return [
        RecordedCall(
            opened_at + turn.began_s,
            opened_at + turn.began_s + turn.first_token_s,
            opened_at + turn.began_s + turn.duration_s,
            max(1, turn.num_prompt - turn.num_cached),
            len(turn.output_tokens),
        )
        for turn in episode.turns
    ]


def _shape(episode: Episode) -> EpisodeShape:
    turns: list[TurnShape] = []
    free_at = 0.0
    for turn in sorted(episode.turns, key=lambda turn: turn.began_s):
        before_s = max(0.0, turn.began_s - free_at)
        new = max(1, turn.num_prompt - turn.num_cached)
        turns.append(TurnShape(turn.num_prompt, new, max(1, len(turn.output_tokens)), before_s))
        free_at = max(free_at, turn.began_s + turn.duration_s)
    after_s = max(0.0, episode.duration_s - free_at)
    return EpisodeShape(tuple(turns), after_s, is_valid=episode.outcome.reward is not None)


def _groups(played: Sequence[tuple[Episode, float]]) -> tuple[tuple[EpisodeShape, ...], ...]:
    by_group: dict[str, list[EpisodeShape]] = {}
    for episode, _ in played:
        by_group.setdefault(episode.group or episode.id, []).append(_shape(episode))
    return tuple(tuple(shapes) for _, shapes in sorted(by_group.items()))


def _idle_share(steps: Sequence[Mapping[str, Any]]) -> float:
    """Part of the finished groups that teach nothing."""
    idle = sum(row.get("batch/uniform_groups", 0.0) for row in steps)
    trained = sum(row.get("batch/groups", 0.0) for row in steps)
    return float(idle / trained) if trained else 0.0


def _trained_share(
    played: Sequence[tuple[Episode, float]], steps: Sequence[Mapping[str, Any]]
) -> float:
    """Tokens that the trainer computes, for each token of the last prompts with their answers."""
    rows = [_shape(episode).num_trained_row for episode, _ in played]
    mean_row = sum(rows) / len(rows)
    computed = sum(row.get("train/num_computed", row.get("train/num_tokens", 0.0)) for row in steps)
    num = sum(row.get("batch/episodes", 0.0) for row in steps)
    if not computed or not num or not mean_row:
        return 1.0
    return float(computed / num / mean_row)
