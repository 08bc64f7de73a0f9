"""A fork of an episode, and how it compares with the record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import areal_sdk
from areal_sdk import ConfigError, Episode, Run

KEPT = ("env", "command", "plugins", "fields", "rewards", "rollout", "gateway", "options")
"""Settings of a run that say how an episode is played and judged."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A recorded episode, and the episode that left it at a turn."""

    recorded: Episode
    forked: Episode
    turn: int
    run_dir: str
    """The run directory that keeps the forked episode."""

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """The turn, and the number of its sampled token, from which the two differ; None if they never do."""
        for index in range(self.turn, max(len(self.recorded.turns), len(self.forked.turns))):
            old, new = _sampled(self.recorded, index), _sampled(self.forked, index)
            if old != new:
                same = (place for place, pair in enumerate(zip(old, new)) if pair[0] != pair[1])  # noqa: B905
                return index, next(same, min(len(old), len(new)))
        return None


def fork_episode(
    run: Run,
    episode_id: str,
    *,
    turn: int,
    model: str,
    temperature: float = 0.0,
    engine: str | None = None,
    agent: str | None = None,
    quiet: bool = False,
) -> Fork:
    """Replay the episode up to `turn`, and go on under the weights of `model`. The fork is kept in a run directory
    beside the run's."""
    recorded = run.episode(episode_id)
    settings = _settings(run, episode_id, turn=turn, engine=engine)
    report = areal_sdk.evaluate(
        agent or _agent(run),
        model=model,
        tasks=[recorded.task],
        record=True,
        quiet=quiet,
        eval={"samples": 1, "temperature": temperature},
        run={"dir": str(run.path.parent), "seed": run.settings["run"]["seed"]},
        **settings,
    )
    kept = Run(report.run_dir)
    (row,) = kept.episodes()
    return Fork(recorded, kept.episode(row["id"]), turn, report.run_dir)


def _settings(run: Run, episode: str, *, turn: int, engine: str | None) -> dict[str, Any]:
    """The settings of the evaluation that plays the fork."""
    recorded: Mapping[str, Any] = run.settings
    settings = {key: recorded[key] for key in KEPT if key in recorded}
    options = dict(settings.get("options", {}))
    name = engine or str(recorded["engine"]["name"])
    if "://" in name:
        raise ConfigError(f"the run sampled from servers at {name}: name an engine with --engine")
    behind = options.pop(f"engine.{name}", {})
    while name == "fork":  # a fork of a fork: the record has the turns of both
        name, behind = str(behind["engine"]), behind["options"]
    options["engine.fork"] = {
        "run": str(run.path),
        "episode": episode,
        "turn": turn,
        "engine": name,
        "options": behind,
    }
    settings["options"] = options
    settings["engine"] = {**recorded["engine"], "name": "fork"}
    # A second attempt would find the replayed turns gone, and this process has the only replay.
    settings["rollout"] = {**settings.get("rollout", {}), "infra_retries": 0, "nodes": 1}
    return settings


def _agent(run: Run) -> str | None:
    settings = run.settings
    if (agent := settings.get("agent")) is not None:
        return str(agent)
    if settings.get("env") is None and settings.get("command") is None:
        raise ConfigError(
            f"{run.path} was begun from Python, and its directory does not name the agent: name its file "
            "with --agent my_agent.py"
        )
    return None


def _sampled(episode: Episode, index: int) -> tuple[int, ...]:
    return episode.turns[index].output_tokens if index < len(episode.turns) else ()
