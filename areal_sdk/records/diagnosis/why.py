"""`areal-sdk why`: the faults of a run, the likely cause first.

    signs of the run -> each rule -> what was there first -> the order of the data's path

A cause is there before its effects, so findings are ranked by the step from which they hold. Findings that began together
are ranked by the path of the data: the model's words, their rewards, the step that trains them. A fault that costs only
time comes last.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from areal_sdk.errors import DivergedError
from areal_sdk.records.diagnosis.course import LEAST, number
from areal_sdk.records.diagnosis.ending import ending_of
from areal_sdk.records.diagnosis.rules import RunFault, episodes, rewards, steps
from areal_sdk.records.diagnosis.signs import Signs
from areal_sdk.records.diagnosis.verdict import Need, RunVerdict, verdict_of, verdict_of_losses
from areal_sdk.telemetry import RunDir

RULES: Sequence[Callable[[Signs], RunFault | None]] = (
    episodes.garbled,
    episodes.never_stops,
    episodes.unparsed_calls,
    episodes.forks,
    episodes.silent,
    episodes.errors,
    steps.unjudged,
    rewards.noisy,
    steps.disagree,
    steps.room,
    steps.signal,
    steps.gradient,
    steps.rate,
    steps.drift,
    steps.entropy,
    steps.freshness,
    rewards.hacked,
    steps.fall,
    steps.held_out,
    steps.by_heart,
    steps.balance,
)
"""All rules, in the order of the data's path."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer of `areal-sdk why`."""

    findings: tuple[RunFault, ...]
    """The likely cause first; empty if the run has no fault."""
    course: str
    """The course of the run in one line."""
    failed: str = ""
    """The reason for an early end of the run: an error, a signal, a kill. Empty if the run ended by itself or goes on."""
    last: tuple[str, ...] = ()
    """Lines about the last minutes of a run that ended early, or about the stuck parts of a run that goes on."""
    num_unreadable: int = 0
    """Number of episodes that could not be read, so that the rules did not see them."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def why(run_dir: RunDir) -> Diagnosis:
    """The faults of the run as it is now. An evaluation has the faults that would keep its agent from learning."""
    if run_dir.read_config().get("finetune", {}).get("objective"):
        return _of_losses(run_dir)
    signs = Signs.of(run_dir)
    ended, last = ending_of(run_dir)
    named = _told_of_by(ended)  # what ended the run comes first, whatever was there before
    found = sorted(diagnose(signs), key=lambda one: one.fault not in named)
    if signs.is_evaluation:
        found = [replace(finding, since=0, first=None) for finding in found]
    return Diagnosis(tuple(found), _course(signs), ended, last, signs.num_unreadable)


def causes_of_end(run_dir: RunDir, error: BaseException) -> Iterator[str]:
    """The first cause of `error`: the parts of the run that are stuck, and the fault of which the error tells."""
    yield from (f"likely: {line}" for line in ending_of(run_dir)[1])
    if named := _told_of_by(f"{type(error).__name__}: {error}"):
        found = (one for one in diagnose(Signs.of(run_dir)) if one.fault in named)
        yield from (f"likely: {one}; {one.cure}" for one in islice(found, 1))


def _told_of_by(ended: str) -> set[str]:
    """The names of the faults that the error text `ended` reports: only such a fault can have ended the run."""
    if ended.startswith(DivergedError.__name__):
        return {"no update", "rate too high"}
    return {fault for reason, (fault, _) in episodes.ERRORS.items() if f"{reason.value}: " in ended}


def diagnose(signs: Signs) -> tuple[RunFault, ...]:
    """The findings on `signs`, the likely cause first."""
    found = [finding for rule in RULES if (finding := rule(signs)) is not None]
    ranked = sorted(found, key=lambda one: (one.costs_time, one.since))
    return tuple(map(_without_later_move, ranked))


def _without_later_move(finding: RunFault) -> RunFault:
    """The finding, without its early sign (`first`) if that metric moved only after the fault was there."""
    is_later = finding.first is not None and finding.first.step >= finding.since + LEAST
    return replace(finding, first=None) if is_later else finding


def _course(signs: Signs) -> str:
    """The course of the run in one line. It is `flat` if the run did not improve although it lacks nothing but a good reward."""
    if not signs.course.values:
        return "no step has trained anything yet"
    if signs.is_evaluation:
        return f"{signs.course.name} {number(signs.course.last)}, measured and not trained"
    verdict = verdict_of(signs.steps, signs.settings, signs.evaluations)
    is_flat = verdict is not None and verdict.missing is Need.REWARD
    if verdict is None or verdict.missing is not None:
        return f"flat: {signs.course.told()}" if is_flat else signs.course.told()
    return str(verdict)


def _of_losses(run_dir: RunDir) -> Diagnosis:
    """The answer about a run that learns from data: its verdict is the only rule."""
    taken, settings = run_dir.read_steps(), run_dir.read_config()
    verdict = verdict_of_losses(taken, run_dir.read_history(kind="held_out"), settings)
    verdict = verdict or RunVerdict(None, "no step has trained anything yet")
    ended = ending_of(run_dir)
    if verdict.missing is None:
        return Diagnosis((), str(verdict), *ended)
    fault = "fall" if verdict.missing is Need.STAY else "rate too low"
    finding = RunFault(fault, verdict.figures, verdict.cure, 1, warns_early=False)
    return Diagnosis((finding,), verdict.figures, *ended)
