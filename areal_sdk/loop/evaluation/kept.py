"""The directory of an evaluation whose episodes are kept (`areal-sdk eval --record`).

It is a run directory without steps: `inspect` and `runs` read it, and nothing resumes it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from areal_sdk.config import Config
from areal_sdk.loop.evaluation.earlier import eval_event
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.runs import removed_if_refused, report_at_end, write_config
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.rollout.groups import DROP_REASON
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, RunDir
from areal_sdk.types import Episode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptEvaluation:
    """Writes the episodes of one evaluation, then its report."""

    run_dir: RunDir
    split: str
    metrics: MetricsLog
    episodes: EpisodeWriter

    def begin(self, agent: str) -> None:
        """Record that the evaluation begins. If it is refused before, its directory is removed."""
        self.metrics.log("measure", {"split": self.split, "agent": agent})

    def evaluated(self, episode: Episode) -> None:
        version = max((v for turn in episode.turns for v in turn.versions), default=None)
        error = episode.outcome.error
        why = None if error is None else DROP_REASON[error]
        self.episodes.write(episode, version=version, split=self.split, dropped=why)

    def report(self, report: EvalReport) -> None:
        self.metrics.log("eval", eval_event("eval", report, step=0))
        self.metrics.log("end", {"ended": "measured", "steps": 0})


@contextmanager
def keep_evaluation(
    config: Config, program: Program, plugins: Plugins, *, split: str
) -> Iterator[KeptEvaluation]:
    """A new directory, named after the agent unless `run.name` is set."""
    run_dir = RunDir.create(config.run.dir, config.run.name, stem=f"eval-{program.name}")
    with removed_if_refused(run_dir), report_at_end(run_dir), run_dir.in_use():
        write_config(run_dir, config, plugins)
        run_dir.record_plugins(plugins.installed_versions())
        metrics = MetricsLog(run_dir.metrics)
        episodes = EpisodeWriter(
            run_dir.episodes, keep_bytes=config.run.keep_bytes, say=logger.warning
        )
        try:
            yield KeptEvaluation(run_dir, split, metrics, episodes)
        finally:
            metrics.close()
            episodes.close()
