"""Rules about the figures of steps: the signal, the rate, entropy, limits, age, and the balance of both sides."""

from dataclasses import replace
from statistics import fmean, median

from areal_sdk.records.diagnosis.course import (
    LEAST,
    LOSS_ERRORS,
    course_by,
    held_out_fall,
    held_out_still,
    number,
    windows,
)
from areal_sdk.records.diagnosis.cures import CUT, SOLVED, TO_GENERALISE, WITHOUT_REWARD
from areal_sdk.records.diagnosis.measures import BOUNDS, differing, is_still, moved
from areal_sdk.records.diagnosis.rules import RunFault
from areal_sdk.records.diagnosis.signs import Signs, since, step_of
from areal_sdk.records.diagnosis.verdict import RULES, Need, RunVerdict, too_low_a_cost, verdict_of
from areal_sdk.telemetry.live.terminal import counted

DISAGREEMENT = 0.1
"""Mean difference between two logprobs of a token at lag 0 that rounding to bfloat16 explains."""
COLLAPSED, FLAT_FOR = 0.1, 6
"""Share of the first entropy below which the policy has collapsed, and fewest steps that it must have stayed below."""
PLATEAU, RUNAWAY = 0.8, 0.5
"""Success from which a policy may lose its entropy, because it knows the answers, and distance from the reference, in
nats a token, that no penalty is meant to allow."""
NO_SIGNAL = 0.3
"""Share of groups whose rewards differ: with less at the end, a collapsed policy has little to learn from."""
SETTLED = 16
"""Number of steps after which a rate that rises by itself, as "auto" does, must have risen."""
RISING = 10.0
"""Factor by which the latest steps move the policy further than the first ones, if the rate rises by itself."""
OFTEN, LEFT_BEHIND = 32, 0.2
"""Number of plays of each task from which tasks may be known by heart, and lead in success over held-out tasks that
shows that they are."""
TIMES_MORE = 2.0
"""Factor by which long episodes must be dropped more often than short ones to be a fault."""
IDLE, SLOW_S = 0.9, 10.0
"""Share of its time that one side must wait for the other to be a fault, and fewest seconds of a judged step."""

MOVES = {
    Need.SIGNAL: ("batch/uniform_groups", "batch/reward", "train/entropy"),
    Need.GRADIENT: ("train/num_updates", "train/grad_norm"),
    Need.RATE: ("train/kl_step", "train/grad_norm", "train/entropy", "batch/success"),
    Need.ROOM: ("batch/sampled_tokens", "batch/truncated", "train/entropy"),
    Need.FRESHNESS: ("train/staleness_mean", "batch/stale_share", "train/ess"),
    Need.STAY: ("train/kl_step", "train/entropy", "batch/sampled_tokens", "batch/success"),
}
"""The metrics that move if a need is not met, by need."""


def disagree(signs: Signs) -> RunFault | None:
    """Engine and trainer that give sampled tokens different logprobs under the same weights."""
    points = signs.points("train/dlogp_lag_0")
    if len(points) < LEAST or max(windows([value for _, value in points])) <= DISAGREEMENT:
        return None
    at, most = max(points, key=lambda point: point[1])
    evidence = [f"step {at}: {number(most)} nats a token, the most"]
    if (far := signs.far_tokens) is not None:
        only = ": a few tokens are wrong, not all" if far.share < CUT else ""
        evidence.append(
            f"step {far.step}: {far.share:.0%} of {far.num_tokens} tokens are off by more than 1 nat{only}"
        )
    return RunFault(
        "engine and trainer disagree",
        f"under the same weights they differ by {number(fmean(v for _, v in points))} nats a token, where rounding explains "
        f"{DISAGREEMENT:g}",
        "run areal-sdk doctor model, compare engine.dtype with trainer.precision, and leave out engine options that change samples "
        '(kv_on_update = "keep", a quantized cache)',
        since(points, lambda value: value > DISAGREEMENT),
        tuple(evidence),
        signs.moved(("train/dlogp_lag_0", "train/entropy", "batch/reward")),
    )


def signal(signs: Signs) -> RunFault | None:
    """Groups whose rewards do not differ: all solved, or all hopeless."""
    if (verdict := _lacks(signs, Need.SIGNAL)) is None:
        return None
    success = signs.course.last if signs.course.name == "success" else 0.0
    which = "solved" if success >= SOLVED else "hopeless"
    points = [
        (step["step"], share) for step in signs.steps if (share := differing(step)) is not None
    ]
    at = since(points, lambda share: share < BOUNDS.differing)
    return _told(signs, Need.SIGNAL, f"zero variance, {which}", verdict, at)


def gradient(signs: Signs) -> RunFault | None:
    """Steps without an update though rewards differ."""
    if (verdict := _lacks(signs, Need.GRADIENT)) is None:
        return None
    return _told(signs, Need.GRADIENT, "no update", verdict, signs.steps[0]["step"])


def rate(signs: Signs) -> RunFault | None:
    """A policy that jumps, or that hardly moves."""
    if (verdict := _lacks(signs, Need.RATE)) is None:
        return None
    kls = [(step["step"], kl) for step in signs.steps if (kl := moved(step)) is not None]
    sizes = [kl for _, kl in kls]
    if signs.course.fell or not is_still(sizes):
        at = next(step for step, kl in kls if kl > BOUNDS.jump)
        return _told(signs, Need.RATE, "rate too high", verdict, at)
    if len(sizes) < SETTLED or median(sizes[-LEAST:]) > RISING * median(sizes[:LEAST]):
        return None  # the rate rises by itself, as `learning_rate = "auto"` does in its first steps
    return _told(signs, Need.RATE, "rate too low", verdict, kls[0][0])


def drift(signs: Signs) -> RunFault | None:
    """A policy that small steps carried away from its reference."""
    points = signs.points("train/kl_reference")
    away = windows([value for _, value in points])[-1] if len(points) >= LEAST else 0.0
    if away <= RUNAWAY or signs.is_healthy:
        return None
    return RunFault(
        "KL runaway",
        f"the policy is {number(away)} nats a token away from its reference, and {signs.course.told()}",
        "go back to a checkpoint before, and raise the penalty (kl of the algorithm) or lower trainer.trust_region",
        since(points, lambda value: value > RUNAWAY),
        first=signs.moved(("train/kl_reference", *MOVES[Need.STAY])),
    )


def entropy(signs: Signs) -> RunFault | None:
    """A policy that has one answer left before its tasks are solved. Entropy falls in healthy runs too, so the rule
    waits until the run makes no progress and most groups have equal rewards."""
    points = signs.points("train/entropy")
    if len(points) < 2 * LEAST:
        return None
    first = fmean(value for _, value in points[:LEAST])
    low = [step for step, value in points if value < COLLAPSED * first]
    if not low or fmean(value for _, value in points[-LEAST:]) >= COLLAPSED * first:
        return None
    at = since(points, lambda value: value < COLLAPSED * first)
    after = [step for step in signs.steps if step["step"] >= at]
    course = course_by(after, "success" if signs.points("batch/success") else "reward")
    shares = [share for step in after if (share := differing(step)) is not None]
    if (
        len(after) < FLAT_FOR
        or not course.values
        or course.rose
        or (course.name == "success" and max(course.means) >= PLATEAU)
        or not shares
        or windows(shares)[-1] > NO_SIGNAL
    ):
        return None
    return RunFault(
        "entropy collapse",
        f"entropy fell from {number(first)} to {number(points[-1][1])} nats, below a tenth at step {at}; since then "
        f"{course.told()}, and the rewards of {windows(shares)[-1]:.0%} of the groups differ",
        "go back to a checkpoint before it; lower trainer.learning_rate or trainer.trust_region, raise the upper clip of the "
        "algorithm (clip_high), or give it a bonus for entropy (entropy)",
        at,
        first=signs.moved(
            ("train/entropy", "batch/uniform_groups", "train/kl_step", "batch/reward")
        ),
        warns_early=False,
    )


def room(signs: Signs) -> RunFault | None:
    """Episodes that run into a limit."""
    if (verdict := _lacks(signs, Need.ROOM)) is None:
        return None
    at = since(signs.points("batch/truncated"), lambda share: share > CUT)
    return _told(signs, Need.ROOM, "answers cut by the limit", verdict, at)


def unjudged(signs: Signs) -> RunFault | None:
    """Episodes that nobody judged: the agent or the reward abstained, or a limit came before."""
    metric = "batch/unjudged_share"
    if (share := signs.mean(metric)) is None or share <= CUT:
        return None
    return RunFault(
        "no reward",
        f"{share:.0%} of the episodes got no reward and are not trained",
        WITHOUT_REWARD[metric],
        since(signs.points(metric), lambda value: value > CUT),
        first=signs.moved((metric, *MOVES[Need.ROOM])),
    )


def freshness(signs: Signs) -> RunFault | None:
    """Samples that are too old, above all those of long episodes."""
    metric = "batch/stale_share_longest_quarter"
    longest, shortest = signs.mean(metric), signs.mean("batch/stale_share_shortest_quarter") or 0.0
    if longest is not None and longest > max(BOUNDS.stale, TIMES_MORE * shortest):
        return RunFault(
            "staleness drops the long ones",
            f"{longest:.0%} of the longest quarter of the episodes were dropped as too old, {shortest:.0%} of the shortest: the "
            "policy is pushed towards short episodes",
            "raise rollout.wait_s or rollout.max_staleness, or lower rollout.max_inflight",
            since(signs.points(metric), lambda share: share > BOUNDS.stale),
            first=signs.moved((metric, "batch/sampled_tokens", "batch/staleness")),
        )
    if (verdict := _lacks(signs, Need.FRESHNESS)) is None:
        return None
    return _told(signs, Need.FRESHNESS, "samples too old", verdict, signs.steps[0]["step"])


def fall(signs: Signs) -> RunFault | None:
    """A run that lost what it had learnt, or whose tasks, environment or reward changed under a policy that did not."""
    if (verdict := _lacks(signs, Need.STAY)) is None:
        return None
    course = signs.course
    middle = (max(course.means) + course.last) / 2
    points = list(zip(course.steps, course.values, strict=True))[course.best :]
    at = since(points, lambda value: value < middle)
    is_policy = too_low_a_cost(signs.steps, course) is None
    fault = "fall" if is_policy else "changed tasks, environment or reward"
    return _told(signs, Need.STAY, fault, verdict, at, warns_early=False)


def held_out(signs: Signs) -> RunFault | None:
    """Success on held-out tasks that fell while success in training rose. If both fell, other rules find the fault."""
    verdict = verdict_of(signs.steps, signs.settings, signs.evaluations)
    success = course_by(signs.steps, "success")
    gains = success.values and success.leans_up
    if not gains or verdict is None or verdict.missing is not Need.HELD_OUT:
        return None
    at = held_out_fall(signs.evaluations)[1]["step"]
    found = _told(signs, Need.STAY, "held-out tasks forgotten", verdict, at, warns_early=False)
    tasks = {one.task_key or one.task_id for one in signs.summaries}
    played = f"{len(signs.summaries)} episodes of training played {len(tasks)} different tasks"
    return replace(found, evidence=(played,))


def by_heart(signs: Signs) -> RunFault | None:
    """Success that rose on often played training tasks, and not on held-out ones. Easier tasks do not count as a
    rise."""
    for first, last, error in held_out_still(signs.evaluations):
        played: dict[str, list[bool]] = {}
        for one in signs.summaries:
            if one.success is not None and step_of(one) > first["step"]:
                played.setdefault(one.task_key or one.task_id, []).append(one.success)
        num = sum(map(len, played.values()))
        if num < OFTEN * max(1, len(played)):
            continue
        thirds = [(plays, len(plays) // 3) for plays in played.values() if len(plays) > 2]
        was = fmean(fmean(plays[:third]) for plays, third in thirds)
        now = fmean(fmean(plays[-third:]) for plays, third in thirds)
        gain, apart = last["success"] - first["success"], now - last["success"]
        if min(now - was - gain, apart) > max(LEFT_BEHIND, LOSS_ERRORS * error):
            return RunFault(
                "learnt by heart",
                f"success on the same {counted(len(played), 'task')} of training, each played {num / len(played):.0f} times, went "
                f"from {number(was)} to {number(now)}, and on held-out tasks ({last.get('split', 'eval')}) from "
                f"{number(first['success'])} to {number(last['success'])}, with a standard error of {number(error)}",
                TO_GENERALISE,
                first["step"] + 1,
                warns_early=False,
            )
    return None


def balance(signs: Signs) -> RunFault | None:
    """One side that waits for the other nearly always. This only costs time: the run learns as much."""
    waits, steps = signs.mean("batch/waited_s"), signs.mean("train/step_s")
    if waits is None or steps is None or len(signs.steps) < BOUNDS.few_steps:
        return None
    whole = waits + steps
    if whole < SLOW_S:
        return None
    if waits > IDLE * whole:
        fault = "generation starves training"
        found = f"the trainer waits {waits:.0f} of {whole:.0f} seconds a step for episodes"
        cure = (
            "start more servers (engine.servers of SGLang), raise rollout.max_inflight or rollout.max_staleness, or look for slow "
            "tools (areal-sdk inspect RUN --live)"
        )
    elif steps > IDLE * whole and signs.mean("batch/running") == 0.0:
        fault = "training starves generation"
        found = f"a step computes for {steps:.0f} of {whole:.0f} seconds, and no episode runs when it takes its batch"
        cure = "give training more devices (trainer.ranks), or raise rollout.max_staleness so that agents go on meanwhile"
    else:
        return None
    first = signs.moved(("batch/waited_s", "train/step_s", "batch/sampled_tokens"))
    return RunFault(fault, found, cure, signs.steps[0]["step"], first=first, costs_time=True)


def _lacks(signs: Signs, need: Need) -> RunVerdict | None:
    """The verdict on one need; None for a run that learnt, which lacks nothing. A solved one may lack differing rewards."""
    course = signs.course
    if not course.values or signs.is_healthy or (course.is_solved and need is not Need.SIGNAL):
        return None
    return RULES[need](signs.steps, signs.settings, signs.course)


def _told(
    signs: Signs, need: Need, fault: str, verdict: RunVerdict, at: int, *, warns_early: bool = True
) -> RunFault:
    first = signs.moved(MOVES[need])
    return RunFault(fault, verdict.figures, verdict.cure, at, (), first, warns_early)
