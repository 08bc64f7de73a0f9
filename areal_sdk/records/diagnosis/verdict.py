"""The verdict on a run: what it learnt, or else the first thing that it needs for learning, and the setting to change.

    signal -> gradient -> a rate that moves the policy -> room -> fresh samples -> a reward that tells -> it stays

A run that learnt and kept it lacks nothing, whatever its other figures. Pure functions over events of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt
from statistics import fmean, median
from typing import Any

from areal_sdk.records.diagnosis import cures
from areal_sdk.records.diagnosis.course import (
    Course,
    course_of,
    held_out_fall,
    held_out_rise,
    number,
    windows,
)
from areal_sdk.records.diagnosis.measures import BOUNDS, Step, differing, is_still, mean_of, moved
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.terminal import counted

Settings = Mapping[str, Any]
NOT_SET = "not set"
SURELY = 2.0
"""Multiple of what updates can have cost: they do not explain a larger fall. The cost is measured on a sample of tokens."""
SURE = 3.0
"""Standard errors by which the best part of a run must exceed the whole run, so that chance does not explain it."""


class Need(StrEnum):
    """A need of a run, in the order in which needs are checked."""

    SIGNAL = "signal"
    GRADIENT = "gradient"
    RATE = "rate"
    ROOM = "room"
    FRESHNESS = "staleness"
    REWARD = "reward noise"
    STAY = "fall"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    missing: Need | None
    """The first need that is not met; None if every need is met, or if it is too early to tell."""
    figures: str
    cure: str = ""
    """The setting to change."""

    def __str__(self) -> str:
        head = self.figures if self.missing is None else f"{self.missing}: {self.figures}"
        return f"{head}: {self.cure}" if self.cure else head


def verdict_of_run(run_dir: RunDir) -> RunVerdict | None:
    """The verdict on the run as it is now; None for a run that took no step."""
    settings, steps = run_dir.read_config(), run_dir.read_steps()
    if settings.get("finetune", {}).get("objective"):
        return verdict_of_losses(steps, run_dir.read_history(kind="held_out"), settings)
    return verdict_of(steps, settings, run_dir.read_history(kind="eval"))


def verdict_of(
    steps: Sequence[Step], settings: Settings, held_out: Sequence[Step] = ()
) -> RunVerdict | None:
    """The verdict on a run that learns from episodes, by its `step` events and its evaluations; None if it has no step."""
    steps = [step for step in steps if step.get("batch/groups")]
    if not steps:
        return None
    course = course_of(steps)
    if (lost := _lost(steps)) is not None:
        return lost  # the rewards are those of the others alone
    if course.rose and not course.fell:
        if forgotten := held_out_fall(held_out):
            best, last = forgotten[0], forgotten[-1]
            return RunVerdict(
                Need.HELD_OUT,
                f"{course.told()}, and success on held-out tasks ({last.get('split', 'eval')}) was {number(best['success'])} at "
                f"step {best['step']} and is {number(last['success'])} at step {last['step']}",
                cures.TO_GENERALISE,
            )
        return RunVerdict(None, f"healthy: {course.told()}")
    if course.is_solved:
        return RunVerdict(None, f"nothing left to learn: success is {course.last:.2f}")
    if (risen := held_out_rise(held_out)) and not course.fell:
        ends = " -> ".join(number(one["success"]) for one in risen)
        return RunVerdict(None, f"healthy: success on held-out tasks {ends}; {course.told()}")
    for rule in RULES.values():
        if (found := rule(steps, settings, course)) is not None:
            fall = (
                f"; {course.told_fall()}" if course.fell and found.missing is not Need.STAY else ""
            )
            return replace(found, figures=found.figures + fall)
    return RunVerdict(None, f"too early to tell: {course.told()}")


def _lost(steps: Sequence[Step]) -> RunVerdict | None:
    """Check that episodes get a reward. In episodes without one, no mistake of the policy costs anything."""
    shares = {name: mean_of(steps, name) or 0.0 for name in cures.WITHOUT_REWARD}
    worst = max(shares, key=shares.__getitem__)
    if shares[worst] <= BOUNDS.cut:
        return None
    return RunVerdict(
        Need.ROOM,
        f"{shares[worst]:.0%} of the episodes got no reward and are not trained ({worst.partition('/')[2]})",
        cures.to_get_rewards(shares),
    )


def _signal(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check that the rewards of enough groups differ."""
    num_groups = sum(step["batch/groups"] for step in steps)
    shares = [share for step in steps if (share := differing(step)) is not None]
    if num_groups < BOUNDS.few_groups or not shares:
        return None
    share, parts = fmean(shares), windows(shares)
    # With few groups a step, some part of a run without a signal has one by chance.
    num_in_part = num_groups * (len(shares) + 1 - len(parts)) / len(shares)
    by_chance = share + SURE * sqrt(share * (1.0 - share) / num_in_part)
    if share >= BOUNDS.differing or max(parts) >= max(BOUNDS.differing, by_chance):
        return None
    what = (
        f"the rewards of {share:.0%} of {num_groups:.0f} groups differ"
        if any(step.get("batch/episodes", 0) > step["batch/groups"] for step in steps)
        else f"{share:.0%} of what was played differs in its rewards"
    )
    level = fmean(step["batch/reward"] for step in steps)
    room = _room(steps, settings, course)
    cure = f"{room.figures}, so {room.cure}" if room else cures.to_get_a_signal(course.last)
    return RunVerdict(Need.SIGNAL, f"{what}, and their mean is {level:.2g}", cure)


def _gradient(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check that the steps with differing rewards made an update."""
    teaching = [step for step in steps if (differing(step) or 0.0) > 0.0]
    updating = [step for step in teaching if step.get("train/num_updates")]
    if not teaching or len(updating) >= BOUNDS.updating * len(teaching):
        return None
    made = f"{len(teaching) - len(updating)} of {counted(len(teaching), 'step')} made no update"
    if any(step.get("train/num_skipped_updates") for step in teaching):
        return RunVerdict(
            Need.GRADIENT,
            f"{made}: the gradient was not finite",
            'lower trainer.learning_rate, or set trainer.precision = "float32"',
        )
    if not any(step.get("train/num_trained") for step in teaching):
        return RunVerdict(
            Need.GRADIENT,
            f"{made}: no sampled token is trained",
            f"look at rollout.truncated ({_setting(settings, 'rollout.truncated')}), and at how the agent samples "
            "(rollout.sampling)",
        )
    return RunVerdict(
        Need.GRADIENT,
        f"{made}: no token has an advantage",
        f"look at the options of the algorithm, [algorithm.{_setting(settings, 'algorithm.name')}]",
    )


def _rate(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check how far a step moves the policy, in KL: neither hardly at all, nor by a jump."""
    moves = [(step["step"], kl) for step in steps if (kl := moved(step)) is not None]
    rate = _setting(settings, "trainer.learning_rate")
    if len(moves) >= BOUNDS.few_steps and not course.fell and is_still([kl for _, kl in moves]):
        raised = (
            "give it more steps (run.steps): the rate rises while rewards differ"
            if rate == "auto"
            else f"raise trainer.learning_rate ({rate})"
        )
        return RunVerdict(
            Need.RATE,
            f"the policy hardly moves, by {median(kl for _, kl in moves):.1g} nats a token a step",
            raised,
        )
    most, at = max(((kl, step) for step, kl in moves), default=(0.0, 0))
    if most > BOUNDS.jump:
        return RunVerdict(
            Need.RATE,
            f"the policy jumped by {most:.2g} nats a token in step {at}",
            _to_move_less(settings),
        )
    return None


def _to_move_less(settings: Settings) -> str:
    """Advice to make the steps smaller: lower the learning rate or, if it is `auto`, the trust region that it follows."""
    rate, bound = (
        _setting(settings, f"trainer.{key}") for key in ("learning_rate", "trust_region")
    )
    if rate == "auto":
        return f"lower trainer.trust_region ({bound})"
    lower = f"lower trainer.learning_rate ({rate})"
    return lower if bound else f"{lower}, or bound each step by trainer.trust_region ({bound})"


def _room(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check that enough episodes end by themselves, and not at a limit."""
    share = mean_of(steps, "batch/truncated")
    if (grew := _growth(steps)) is not None:
        truncated = _setting(settings, "rollout.truncated")
        cure = (
            f"{_to_move_less(settings)}; or raise {cures.LIMITS}, if answers are meant to grow"
            if truncated == "score"
            else f'set rollout.truncated = "score" ({truncated}): an episode without an end teaches nothing now'
        )
        return RunVerdict(Need.ROOM, grew, cure)
    if share is None or share <= BOUNDS.cut:
        return None
    figures = f"{share:.0%} of the episodes ran into a limit before they had ended"
    return RunVerdict(Need.ROOM, figures, f"raise {cures.LIMITS}")


def _growth(steps: Sequence[Step]) -> str | None:
    """A sentence about episodes that grew into a limit, from the first window of steps to the last; None if they did not."""
    names = ("batch/sampled_tokens", "batch/truncated")
    known = [[step[name] for step in steps if step.get(name) is not None] for name in names]
    if not all(known):
        return None
    lengths = [cures.Lengths(*means) for means in zip(*map(windows, known), strict=False)]
    return lengths[-1].growth_since(lengths[0], least=BOUNDS.cut)


def _freshness(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check that few episodes are dropped as too old, and that the age of the others costs few effective samples."""
    staleness = _setting(settings, "rollout.max_staleness")
    dropped = mean_of(steps, "batch/stale_share")
    if dropped is not None and dropped > BOUNDS.stale:
        return RunVerdict(
            Need.FRESHNESS,
            f"{dropped:.0%} of the episodes were dropped as too old",
            f"raise rollout.max_staleness ({staleness}), or lower rollout.max_inflight",
        )
    shares = [step["train/ess"] for step in steps if step.get("train/ess") is not None]
    age = mean_of(steps, "train/staleness_mean") or 0.0
    if age > 0.0 and len(shares) >= BOUNDS.few_steps and median(shares) < BOUNDS.effective:
        return RunVerdict(
            Need.FRESHNESS,
            f"samples are {age:.1f} updates old, and count as {median(shares):.0%} of them (train/ess)",
            f"lower rollout.max_staleness ({staleness})",
        )
    return None


def _stay(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """The verdict that the run lost what it had learnt; None if it did not."""
    if not course.fell:
        return None
    if (cost := too_low_a_cost(steps, course)) is not None:
        told = (
            f"{course.told_fall()}, and the updates since then can have cost {number(cost)} of it"
        )
        return RunVerdict(Need.STAY, told, cures.NOT_THE_POLICY)
    return RunVerdict(
        Need.STAY,
        course.told_fall(),
        f"{_to_move_less(settings)}; or take more episodes a step (rollout.batch, "
        f"{_setting(settings, 'rollout.batch')})",
    )


def too_low_a_cost(steps: Sequence[Step], course: Course) -> float | None:
    """The most success or reward that the updates since the best step can have cost, if this is too little for the fall;
    None if the updates explain the fall, or were not measured.

    Pinsker's inequality: where policies are k nats a token apart, an event in an episode of n tokens differs in
    probability by at most sqrt(k n / 2). Updates add up; those of one step are alike at worst (Cauchy-Schwarz).
    """
    best = course.steps[course.best]
    later = [step for step in steps if step["step"] >= best and "train/kl_step" in step]
    names = ("train/kl_step", "batch/sampled_tokens")
    if not later or any(step.get(name) is None for step in later for name in names):
        return None
    nats = (
        step["train/kl_step"]
        * (step.get("train/num_updates") or 1.0)
        * step["batch/sampled_tokens"]
        for step in later
    )
    cost = course.scale * sum(sqrt(max(0.0, one) / 2.0) for one in nats)
    return cost if SURELY * cost < max(course.means) - course.last else None


def _reward(steps: Sequence[Step], settings: Settings, course: Course) -> RunVerdict | None:
    """Check that the reward depends on what the policy does."""
    if course.fell or course.leans_up or len(steps) < BOUNDS.many_steps:
        return None
    spread = mean_of(steps, "batch/reward_std") or 0.0
    warm_up = _setting(settings, "sft.steps")
    # A model that cannot read the question plays by chance too, and rewards teach it little.
    longer = f"warm up longer (sft.steps, {warm_up}), " if warm_up not in (0, NOT_SET) else ""
    return RunVerdict(
        Need.REWARD,
        f"rewards differ by {spread:.2g} within a batch, yet {course.told()}",
        "look whether chance decides the reward (areal-sdk inspect RUN --group ID shows the attempts at a task); if "
        f"it is right, {longer}take more episodes a step (rollout.batch, {_setting(settings, 'rollout.batch')}) and more steps",
    )


RULES: Mapping[Need, Callable[[Sequence[Step], Settings, Course], RunVerdict | None]] = {
    Need.SIGNAL: _signal,
    Need.GRADIENT: _gradient,
    Need.RATE: _rate,
    Need.ROOM: _room,
    Need.FRESHNESS: _freshness,
    Need.REWARD: _reward,
    Need.STAY: _stay,
}
"""The check of each need, in the order of the verdict."""


LESS, NOISE = 0.02, 0.1
"""Relative change from which a loss counts as changed, and the part of a run's gain that is noise without held-out data."""


def verdict_of_losses(
    steps: Sequence[Step], held_out: Sequence[Step], settings: Settings
) -> RunVerdict | None:
    """The verdict on a run that learns from data: by the loss on held-out data, else by the loss of its steps."""
    measured = [
        (event["step"], event["loss"]) for event in held_out if event.get("loss") is not None
    ]
    losses = [step["train/loss"] for step in steps if step.get("train/loss") is not None]
    if not losses:
        return None
    what, noise = "the held-out loss", 0.0
    if len(measured) < 2:
        what, noise = "the loss", NOISE
        ends = [step["step"] for step in steps][-len(windows(losses)) :]
        measured = list(zip(ends, windows(losses), strict=True))
    (_, first), (at_end, last) = measured[0], measured[-1]
    best, at = min((loss, step) for step, loss in measured)
    rate = _setting(settings, "trainer.learning_rate")
    if last > best + max(LESS * best, noise * (first - best)) and at < at_end:
        return RunVerdict(
            Need.STAY,
            f"{what} was {best:.3g} at step {at} and is {last:.3g} at step {at_end}",
            f"take fewer steps (finetune.epochs), more data, or a lower trainer.learning_rate ({rate})",
        )
    told = f"{what} {first:.3g} -> {last:.3g} in {counted(len(steps), 'step')}"
    if last < first * (1.0 - LESS):
        return RunVerdict(None, f"healthy: {told}")
    if len(steps) < BOUNDS.few_steps:
        return RunVerdict(None, f"too early to tell: {told}")
    return RunVerdict(Need.RATE, told, f"raise trainer.learning_rate ({rate})")


def _setting(settings: Settings, key: str) -> object:
    """The value of a setting in the resolved configuration; `NOT_SET` without one."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part, NOT_SET) if isinstance(value, Mapping) else NOT_SET
    return value
