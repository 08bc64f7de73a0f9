"""Advice before a run is paid for, the first thing to change first.

    noise -> findings of `areal-sdk why` -> calls, world, groups, repeated tasks

The rules of `why` see the recorded attempts as they see those of a run, and keep their order. Only what a probe measures
and a run does not has rules here. Noise comes first: if the same answers earn different rewards, whatever else the rewards
say is chance.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from areal_sdk.records import FollowedRun
from areal_sdk_probe.figures import Figures
from areal_sdk_probe.playing import Played

NOISY = 0.3
"""Part of the variance within groups that noise explains, from which the reward has to change first."""
LOST = 0.2
"""Share of the replayed attempts that left their record, from which the world counts as random."""
ERRORS = 2.0
"""Standard errors by which the differences within groups must exceed their noise."""
FEW = 0.5
"""Share of the groups that differ below which larger groups, or other tasks, save time."""
ALIKE = 0.5
"""Share of the groups with one answer only, from which a higher temperature may find others."""
REPEATED = 0.1
"""Share of repeated tasks from which they are named."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    fault: str
    found: str
    change: str
    """The setting, or the part of the program, to change."""
    evidence: tuple[str, ...] = ()


def advice_on(played: Played, figures: Figures) -> list[Advice]:
    """All that is worth a change. Empty: begin the run."""
    findings = FollowedRun(played.run.path).why().findings
    is_told = any(one.fault.startswith("zero variance") for one in findings)
    told = [
        *_noise(figures),
        *(Advice(one.fault, one.found, one.cure, one.evidence) for one in findings),
        *_calls(played),
        *_lost(figures),
        *_groups(played, figures, is_told=is_told),
        *_tasks(figures),
    ]
    first = {one.fault: one for one in reversed(told)}
    return [one for one in told if first[one.fault] is one]


def _noise(figures: Figures) -> Iterator[Advice]:
    noise = figures.noise
    if noise.share >= NOISY:
        yield Advice(
            "noisy reward",
            f"{noise.unequal} of {noise.compared} answers earned another reward when they were scored again: chance makes "
            f"{noise.share:.0%} of the differences within groups",
            "let the reward be the same for the same answer (a judge at temperature 0, no time, no chance), or take more "
            "attempts (rollout.group_size)",
        )


def _calls(played: Played) -> Iterator[Advice]:
    if said := played.report.uncalled:
        yield Advice(
            "model never called",
            said,
            "let the agent send its calls to context.base_url with context.api_key",
        )


def _lost(figures: Figures) -> Iterator[Advice]:
    noise = figures.noise
    num = noise.lost + noise.replays * noise.compared
    if noise.replays and noise.lost > LOST * num:
        yield Advice(
            "random world",
            f"{noise.lost} of about {num} replayed attempts left their record: the same answers led to other prompts, or to "
            "no reward",
            "draw what the environment draws from task.data or context.seed, so that attempts at a task can be compared",
        )


def _groups(played: Played, figures: Figures, *, is_told: bool) -> Iterator[Advice]:
    """Groups that teach nothing. `is_told`: `why` has said so."""
    groups, rollout = figures.groups, played.run.settings["rollout"]
    if not groups.compared or groups.share >= FEW:
        return
    idle = f"in {groups.compared - groups.differing} of {groups.compared} groups all attempts earned the same, which teaches nothing"
    if groups.same_answers >= ALIKE and groups.too_easy < ALIKE:
        yield Advice(
            "answers all alike",
            f"{idle}; in {groups.same_answers:.0%} of the groups they were the same answer",
            f"raise rollout.temperature ({rollout['temperature']:g}), or ask for reasoning before the answer",
        )
    if is_told:
        return
    _, _, cure = played.report.signal.partition(": ")
    others = "show an example in the prompt, imitate demonstrations first (areal-sdk sft)"
    if groups.too_easy > groups.too_hard:
        others = "take harder tasks"
    yield Advice(
        "few groups differ",
        idle,
        cure
        or f"{others}, raise rollout.group_size ({rollout['group_size']}), or replace such groups "
        "(rollout.dynamic_sampling = true)",
    )


def _tasks(figures: Figures) -> Iterator[Advice]:
    if figures.groups.repeated >= REPEATED:
        yield Advice(
            "repeated tasks",
            f"{figures.groups.repeated:.0%} of the tasks that were played ask what another one asks",
            "give each task once: rollout.epochs repeats them",
        )


def hours(settings: Mapping[str, Any], figures: Figures, num_steps: int) -> float:
    """Hours of sampling for `num_steps` steps at the measured rate."""
    rollout = settings["rollout"]
    replaced = 1.0
    if rollout["dynamic_sampling"]:
        replaced = max(figures.groups.share, 1.0 / max(1, figures.groups.compared))
    return float(num_steps * rollout["batch"] / replaced / figures.episodes_per_s / 3600.0)


def is_learnable(figures: Figures) -> bool:
    """Whether some groups differ, and by more than the noise that the replays showed."""
    noise = figures.noise
    error = sqrt(2.0 / max(1, noise.compared * noise.replays))
    return bool(figures.groups.differing) and 1.0 - noise.share > ERRORS * error * noise.share
