"""Going on with a run: what its settings may change, and whether anything is left to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.config import Config
from areal_sdk.config.keys import join_key, leaves
from areal_sdk.config.tables import as_written
from areal_sdk.errors import ConfigError
from areal_sdk.loop.state import RunSummary
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.rundir import BEST, REMOVED, read_measured, without_secrets

_FIXED = {
    "model": "a run keeps its model",
    "init_from": "a run keeps the weights it began with",
    "run.dir": "a run goes on in its own directory",
    "run.name": "a run goes on in its own directory",
    "run.seed": "the order of its tasks and its held-out sample follow from it",
    "serve.learn": "a run goes on with callers, or with tasks, as it began",
}
_FIXED_ONCE_SAVED = {"sft": "its warm-up is over"}
_NOT_SET = "not set"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that a resumed run has another value for."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} = {self.after} (was {self.before})"


def changed_settings(run_dir: RunDir, config: Config, *, is_saved: bool) -> list[Change]:
    """What `config` changes in the run; ConfigError for what cannot change any more.

    `is_saved`: there is a checkpoint to go on from.
    """
    before, defaults = _flat(run_dir.read_config()), _flat(_settings(Config()))
    after = _flat(_settings(config))
    changes = []
    for key in sorted({*before, *after}):
        old, new = before.get(key, _NOT_SET), after.get(key, _NOT_SET)
        is_secret = REMOVED in str(old) or REMOVED in str(new)
        is_new_default = key not in before and new == defaults.get(key)
        if old != new and not is_secret and not is_new_default:
            changes.append(Change(key, old, new))
    for change in changes:
        why = _FIXED.get(change.key)
        if is_saved:
            why = why or _FIXED_ONCE_SAVED.get(change.key.partition(".")[0])
        if why:
            raise ConfigError(
                f"{change.key} = {change.after!r}: {why} ({change.before!r}): leave it out, or begin "
                "another run"
            )
    return changes


def why_finished(run_dir: RunDir, config: Config, changes: Sequence[Change]) -> str | None:
    """Why nothing is left to train, and how to go on; None where there is, or the run was stopped."""
    events = run_dir.read_metrics()
    if not events or events[-1]["kind"] != "end":
        return None
    end, run = events[-1], config.run
    steps = end["steps"]
    made = f"{steps} step" if steps == 1 else f"{steps} steps"
    if steps >= run.steps:
        way_on = run_dir.how_to_resume(steps=2 * steps)
        return f"it has made its {made} (run.steps); for more of them: {way_on}"
    is_raised = any(change.key == "run.max_minutes" for change in changes)
    if end["ended"] == "max_minutes" and run.max_minutes is not None and not is_raised:
        return (
            f"it has trained for its {run.max_minutes:g} minutes, {made}; to go on give more "
            "with --set run.max_minutes=M"
        )
    return None


def finished_summary(run_dir: RunDir) -> RunSummary:
    """Of a run that ended by itself, as far as its directory tells it."""
    end = run_dir.read_metrics(kind="end")[-1]
    return RunSummary(
        run_dir=str(run_dir.path),
        steps=end["steps"],
        version=end["version"],
        train_seconds=end["train_seconds"],
        ended=end["ended"],
        ledger=run_dir.read_ledger() or {},
        best=read_measured(run_dir.checkpoints / BEST),
        had_ended=True,
    )


def _settings(config: Config) -> dict[str, Any]:
    return without_secrets(config.model_dump(mode="json", exclude_none=True))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {join_key(*parts): value for parts, value in leaves(as_written(dict(settings)))}
