"""A run directory for tests of tools that read runs: its files are written as a run writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_sdk.telemetry import DropReason, EpisodeWriter, Ledger, MetricsLog, RunDir
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import Episode


class RecordedRun:
    """Writes a run step by step. `close` it, as a run does, or read it while it grows."""

    def __init__(self, directory: Path, *, settings: Mapping[str, Any] | None = None) -> None:
        """Begin a run in `directory`, or go on with a run that is there."""
        self.path = directory
        self._run = RunDir(directory)
        if not self._run.config.is_file():
            RunDir.create(directory.parent, directory.name)
            self._run.logs.mkdir()
            self._run.write_config({"model": "tiny", "agent": "agent.py", **(settings or {})})
        self._ledger = Ledger.restore(self._run.read_ledger() or Ledger().snapshot())
        self._metrics = MetricsLog(self._run.metrics)
        self._episodes = EpisodeWriter(self._run.episodes)

    def step(
        self,
        step: int,
        episodes: Sequence[tuple[Episode, Sequence[Trajectory]]],
        *,
        advantages: Mapping[str, float],
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a step that trained these episodes. They were sampled by the weights before it."""
        for episode, trajectories in episodes:
            self._episodes.write(episode, trajectories=trajectories, version=step - 1)
        credit = {
            e.id: Credit(advantages[e.id], (advantages[e.id],) * len(e.turns)) for e, _ in episodes
        }
        self._episodes.mark_trained(credit, step=step)
        self._ledger.start(len(episodes))
        self._ledger.buffer(len(episodes))
        self._ledger.train(len(episodes))
        self.event("step", {"step": step, "version": step, **(metrics or {})})

    def drop(self, episode: Episode, reason: str, *, version: int = 0) -> None:
        """Write an episode that no step trains."""
        why = DropReason(reason)
        self._ledger.start()
        self._ledger.drop(why)
        self._episodes.write(episode, dropped=why, version=version)

    def measure(self, episode: Episode, *, split: str = "eval", step: int = 0) -> None:
        """Write an episode of an evaluation after `step`."""
        self._episodes.write(episode, version=step, split=split, measures=step)

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a line of `metrics.jsonl`: `eval`, `notice`, `end`, ..."""
        self._metrics.log(kind, values)
        self._run.write_ledger(self._ledger.snapshot())

    def resume(self, step: int) -> None:
        """Write a resume that goes on after `step`."""
        self._episodes.mark_resumed(step)
        self.event("resume", {"step": step, "changed": {}})

    def close(self) -> None:
        self._metrics.close()
        self._episodes.close()
