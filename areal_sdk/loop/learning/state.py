"""The state of a run: what a checkpoint stores beside the weights, and what the live view shows.

The module also says when and where checkpoints are made, how a run goes on from one, what its settings
may change then, and whether anything is left to do.
"""

import re
import shlex
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from areal_sdk.config import Config
from areal_sdk.config.keys import join_key, leaves
from areal_sdk.config.tables import as_written
from areal_sdk.errors import ConfigError, DamagedError
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.checksums import check_files
from areal_sdk.telemetry.directories import forget_old
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.telemetry.metrics import last_event
from areal_sdk.telemetry.run_dir import BEST, REMOVED, read_measured, without_secrets
from areal_sdk.trainer import Trainer


@dataclass(slots=True)
class RunState:
    """The state in every checkpoint. With the weights, it is enough to continue as if nothing had happened."""

    warmup_steps: int = 0
    """Steps of the supervised warm-up."""
    step: int = 0
    """Steps since the run began, including steps that changed no weights."""
    train_seconds: float = 0.0
    """Time spent training, evaluation before and after excluded."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Consumed tasks: trained, or dropped for good."""
    guard: Mapping[str, Any] = field(default_factory=dict)
    """Batches that the guard has seen, and what it keeps (`run.guard`)."""

    @property
    def version(self) -> int:
        """The version of the weights: each step publishes one, and a warm-up is published as version 0."""
        return self.step

    @property
    def reached(self) -> str:
        """The last step in words: `step 3`, or `warm-up step 3` before the first one."""
        in_warmup = self.warmup_steps and not self.step
        return f"warm-up step {self.warmup_steps}" if in_warmup else f"step {self.step}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def update_from(self, values: Mapping[str, Any]) -> None:
        """Take over the values of a checkpoint. A value that an older checkpoint lacks stays as it is."""
        for field_ in fields(self):
            setattr(self, field_.name, values.get(field_.name, getattr(self, field_.name)))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of a run that ended or was interrupted."""

    run_dir: str
    steps: int
    version: int
    train_seconds: float
    ended: str
    """`steps`, `max_minutes`, `success`, `tasks`, `solved`, `hopeless`, `stuck`, `collapsed`, or `interrupted`."""
    before: Mapping[str, EvalReport] = field(default_factory=dict)
    """The evaluations before training, by split."""
    after: Mapping[str, EvalReport] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    saved_step: int | None = None
    """Step after which a resumed run would go on; None: nothing was saved."""
    best: Mapping[str, Any] | None = None
    """The success of the best weights, and their step; None if none were kept."""
    warnings: Sequence[str] = ()
    """Reasons to doubt the measurements, such as held-out tasks that were trained on."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Loss of a fine-tuning run on its held-out data, as `before/loss` and `after/loss`."""
    had_ended: bool = False
    """Whether the run was to be resumed, and nothing was left to do."""
    better: int | None = None
    """The step whose kept weights earned clearly more than the last ones, where nothing was evaluated."""
    rollbacks: int = 0
    """Number of times that the guard put earlier weights back."""
    elapsed_s: float = 0.0
    """Seconds from the start (or resumption) to the end, loading and evaluations included."""

    @property
    def lost(self) -> str:
        """The work that an interrupted run would have to do again."""
        if self.saved_step == self.steps == 0:
            return "the warm-up so far is saved: a resumed run goes on with it"
        if self.saved_step is not None and self.saved_step >= self.steps:
            return f"step {self.saved_step} is saved: no step is lost"
        if not self.steps:
            return "no step was taken: a resumed run begins anew"
        first = (self.saved_step or 0) + 1
        steps = f"step {first}" if first == self.steps else f"steps {first} to {self.steps}"
        again = "it" if first == self.steps else "them"
        return f"{steps} could not be saved: a resumed run takes {again} again"

    def to_json(self) -> dict[str, Any]:
        values = {field_.name: getattr(self, field_.name) for field_ in fields(self)}
        for name in ("before", "after"):
            values[name] = {split: report.metrics() for split, report in values[name].items()}
        return values

    def numbers(self) -> dict[str, float]:
        """The numbers of the summary, flat: `steps`, `after/eval/success`, `ledger/dropped/stale`."""
        return flat_numbers(self.to_json())


def flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers inside a mapping, for observers of a run.

    >>> flat_numbers({"step": 3, "note": "", "ledger": {"trained": 16, "dropped": {"stale": 2}}})
    {'step': 3.0, 'ledger/trained': 16.0, 'ledger/dropped/stale': 2.0}
    """
    return {
        "/".join(parts): float(value)
        for parts, value in leaves(values)
        if isinstance(value, (int, float))
    }


PREFIX = "step-"
GOOD = "good-"
"""Prefix of the checkpoints that the guard keeps. Runs do not resume from them."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run: `checkpoints/step-000020`, newest last."""

    directory: Path
    every: int
    keep: int

    def is_due(self, step: int, *, at_once: bool = False) -> bool:
        return bool(self.every) and (at_once or step % self.every == 0)

    async def begin(self, trainer: Trainer, state: RunState) -> Awaitable[None]:
        """Begin to save `state`. Await the result to have the checkpoint written and the oldest ones removed.

        A save that fails leaves the earlier checkpoints as they were.
        """
        path = self.directory / f"{PREFIX}{state.step:06d}"
        written = await trainer.begin_save(path, state.to_json())

        async def finish() -> None:
            await written
            await in_thread(lambda: forget_old(path, keep=self.keep), name="forget old")

        return finish()


def step_of(checkpoint: Path) -> int | None:
    """The step of a checkpoint that the run wrote; None for a directory that somebody else put there.

    >>> step_of(Path("checkpoints/step-000020"))
    20
    >>> step_of(Path("checkpoints/step-000020-good"))
    """
    match = re.fullmatch(rf"(?:{PREFIX}|{GOOD})(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def good_checkpoint(directory: Path, step: int) -> Path:
    """The directory in which the guard keeps the weights of `step`."""
    return directory / f"{GOOD}{step:06d}"


def good_checkpoints(directory: Path) -> list[Path]:
    """All checkpoints that the guard keeps, oldest first. Only the last may be a candidate."""
    return sorted(path for path in directory.glob(f"{GOOD}*") if path.name[len(GOOD) :].isdecimal())


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint: a directory gets its name only once it is whole."""
    found = [
        (step, path)
        for path in directory.glob(f"{PREFIX}*")
        if (step := step_of(path)) is not None and path.is_dir()
    ]
    return max(found)[1] if found else None


def check_checkpoint(checkpoint: Path) -> None:
    """Raise DamagedError for damage that is found without reading the weights, before a process starts. The trainer
    checks everything that it loads."""
    try:
        check_files(checkpoint, quickly=True)
    except DamagedError as exc:
        raise DamagedError(f"{exc}; {way_around(checkpoint)}") from exc


def way_around(checkpoint: Path) -> str:
    """The command that continues from the checkpoint before a damaged one."""
    step = step_of(checkpoint)
    earlier = [
        path
        for path in checkpoint.parent.glob(f"{PREFIX}*")
        if step is not None and (other := step_of(path)) is not None and other < step
    ]
    if not earlier:
        return "there is no earlier checkpoint: restore it from a copy, or begin another run"
    previous = max(earlier, key=lambda path: step_of(path) or 0)
    aside = shlex.join(["mv", str(checkpoint), f"{checkpoint}-damaged"])
    return (
        f"to go on from the one before, {previous.name}, put it aside ({aside}) and resume the run"
    )


_FIXED = {
    "model": "a run keeps its model",
    "init_from": "a run keeps the weights it began with",
    "run.dir": "a run goes on in its own directory",
    "run.name": "a run goes on in its own directory",
    "run.seed": "the order of its tasks and its held-out sample follow from it",
    "trainer.lora.rank": "a run keeps its adapter",
    "trainer.lora.alpha": "a run keeps its adapter",
    "trainer.lora.targets": "a run keeps its adapter",
    "serve.learn": "a run goes on with callers, or with tasks, as it began",
}
_FIXED_ONCE_SAVED = {
    "sft": "its warm-up has begun",
    "finetune": "a run keeps the data and the objective it began with",
}
_NOT_SET = "not set"


ENDED_EMPTY = ("solved", "hopeless", "stuck")
"""Endings of runs whose batches teach hardly anything any more: all succeed, none does, or siblings earn the same."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting with another value in a resumed run."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} = {self.after} (was {self.before})"


def changed_settings(run_dir: RunDir, config: Config, *, is_saved: bool) -> list[Change]:
    """The settings that `config` changes in the run; ConfigError for settings that cannot change any more.

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
    """The reason why nothing is left to train, and the way to go on; None if something is left, or the run was stopped."""
    end, run = last_event(run_dir.read_metrics()), config.run
    if end.get("kind") != "end":
        return None
    steps = end["steps"]
    made = counted(steps, "step")
    if steps >= run.steps:
        way_on = run_dir.how_to_resume(steps=2 * steps)
        return f"it has made its {made} (run.steps); for more of them: {way_on}"
    is_raised = any(change.key == "run.max_minutes" for change in changes)
    if end["ended"] == "max_minutes" and run.max_minutes is not None and not is_raised:
        return (
            f"it has trained for its {run.max_minutes:g} minutes, {made}; to go on give more "
            "with --set run.max_minutes=M"
        )
    if end["ended"] in ENDED_EMPTY and not changes:
        return (
            f"its last batches had no gradient after {made} ({end['ended']}); to go on all the same change a setting, "
            "such as --set trainer.learning_rate=..., or begin another run with --init-from"
        )
    if end["ended"] == "collapsed" and not changes:
        return (
            f"it collapsed again and again, and ended with its best weights after {made}; to go on all the same change "
            "a setting, such as --set trainer.learning_rate=..., or begin another run with --init-from"
        )
    return None


def finished_summary(run_dir: RunDir) -> RunSummary:
    """The summary of a run that ended by itself, as far as its directory tells it."""
    end = run_dir.read_metrics(kind="end")[-1]
    return RunSummary(
        run_dir=str(run_dir.path),
        steps=end["steps"],
        version=end["version"],
        train_seconds=end["train_seconds"],
        ended=end["ended"],
        ledger=run_dir.read_ledger() or {},
        best=read_measured(run_dir.checkpoints / BEST),
        better=end.get("better"),
        rollbacks=end.get("rollbacks", 0),
        had_ended=True,
    )


def _settings(config: Config) -> dict[str, Any]:
    return without_secrets(config.model_dump(mode="json", exclude_none=True))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {join_key(*parts): value for parts, value in leaves(as_written(dict(settings)))}
