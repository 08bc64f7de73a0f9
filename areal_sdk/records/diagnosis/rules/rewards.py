"""Rules about rewards: chance, and what a policy can gain without doing better."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from areal_sdk.records.diagnosis.course import GAIN, LOSS, LOSS_ERRORS, course_by, number
from areal_sdk.records.diagnosis.cures import CUT, LONGER
from areal_sdk.records.diagnosis.rules import REPLACEMENT, RunFault, counted_of
from areal_sdk.records.diagnosis.signs import Signs, first_move, step_of
from areal_sdk.telemetry import EpisodeSummary
from areal_sdk.telemetry.episode_index import TEXT_LENGTH

FEWEST_PAIRS = 16
"""Fewest answers given more than once for a finding about chance, and fewest episodes for one about length."""
NOISY = 0.2
"""Share of the answers given more than once that earned different rewards, from which the reward is noisy."""
SAME = 1e-6
"""Difference up to which rewards are equal."""
BY_LENGTH = 0.5
"""Correlation of reward and length, within groups, from which longer or shorter answers earn more."""
LENGTH_ALONE = 0.9
"""Correlation of reward and length from which length alone decides the reward."""
COMPONENT = "batch/outcome/"


def noisy(signs: Signs) -> RunFault | None:
    """Equal answers to one task with different rewards.

    Only episodes of one turn count, and only whole texts: two games with the same last word may differ in their course.
    """
    answers: dict[tuple[str, str, int], list[EpisodeSummary]] = defaultdict(list)
    for one in signs.summaries:
        is_whole = 0 < len(one.text) < TEXT_LENGTH and REPLACEMENT not in one.text
        if one.reward is not None and one.num_turns == 1 and is_whole:
            answers[one.task_key or one.task_id, one.text, one.num_tokens].append(one)
    repeated = [same for same in answers.values() if len(same) > 1]
    unequal = [same for same in repeated if _spread_of(same) > SAME]
    if len(repeated) < FEWEST_PAIRS or len(unequal) < NOISY * len(repeated):
        return None
    widest = max(unequal, key=_spread_of)
    told = ", ".join(f"{one.reward:g} ({one.id})" for one in widest[:4])
    return RunFault(
        "noisy reward",
        f"{counted_of(len(unequal), len(repeated))} answers that were given more than once earned different "
        f"rewards{_of_source(signs, unequal, repeated)}",
        "look at the attempts at one task (areal-sdk inspect RUN --group ID): let the reward be the same for the same answer "
        "(a judge at temperature 0, no time, no chance), or take more attempts (rollout.group_size)",
        step_of(unequal[0][0]),
        (f"the answer {widest[0].text[:60]!r} to task {widest[0].task_id} earned {told}",),
        warns_early=False,
    )


def _spread_of(same: Sequence[EpisodeSummary]) -> float:
    rewards = [one.reward for one in same if one.reward is not None]
    return max(rewards) - min(rewards)


def _of_source(
    signs: Signs,
    unequal: Sequence[Sequence[EpisodeSummary]],
    repeated: Sequence[Sequence[EpisodeSummary]],
) -> str:
    """The source with the noise, if the others have none."""
    source_of = {episode.task.id: episode.task.source for _, episode in signs.sampled}
    noisy_ones = {source_of.get(same[0].task_id, "") for same in unequal} - {""}
    others = {source_of.get(same[0].task_id, "") for same in repeated} - {""} - noisy_ones
    return f", all of source {noisy_ones.pop()!r}" if len(noisy_ones) == 1 and others else ""


def hacked(signs: Signs) -> RunFault | None:
    """A reward that rose while success or another component of the reward fell, or while the limit cut more and more answers
    because the longer ones earn more."""
    reward, success = (course_by(signs.steps, name) for name in ("reward", "success"))
    if not reward.values or not reward.rose:
        return None
    pays = _length_pays(signs.summaries)
    cut = _cut(signs) if pays >= BY_LENGTH else ""
    lost = cut or ("" if success.values and success.leans_up else _lost(signs))
    if not lost:
        return None
    by, what, metric = _gained(signs, pays, is_cut=bool(cut))
    return RunFault(
        f"reward hacked by {by}",
        f"the {reward.told()}, and {lost}; {what}",
        "look at the best episodes (areal-sdk inspect RUN --best 5), and let the reward not pay for it: "
        + (
            'give an answer without an end no reward, or do not train it (rollout.truncated = "drop")'
            if cut
            else "divide by the length, or bound it (rollout.max_new_tokens)"
            if by == "length"
            else "lower the weight of what rose (rewards), or make it depend on success"
        ),
        moved.step if (moved := first_move(metric, signs.points(metric))) else 1,
        tuple(
            f"{name} {number(first)} -> {number(last)}"
            for name, (first, last) in _components(signs).items()
        ),
        signs.moved(("batch/sampled_tokens", "batch/success", *_components(signs))),
        warns_early=False,
    )


def _cut(signs: Signs) -> str:
    """The rise of the share of answers that the limit cuts; empty if it did not rise."""
    cut = signs.ends("batch/truncated")
    if cut is None or cut[1] - cut[0] <= CUT:
        return ""
    return f"the limit cuts {cut[1]:.0%} of the answers ({cut[0]:.0%} before)"


def _lost(signs: Signs) -> str:
    """The measure that fell while the reward rose; empty if none did."""
    success = course_by(signs.steps, "success")
    if success.values:
        least = max(LOSS, LOSS_ERRORS * success.error)
        if success.first - success.last > least:
            return f"success fell from {number(success.first)} to {number(success.last)}"
    falls = {
        name.removeprefix(COMPONENT): ends
        for name, ends in _components(signs).items()
        if ends[0] - ends[1] > LOSS * max(1.0, abs(ends[0]))
    }
    if not falls:
        return ""
    name, (first, last) = max(falls.items(), key=lambda item: item[1][0] - item[1][1])
    return f"{name} fell from {number(first)} to {number(last)}"


def _components(signs: Signs) -> Mapping[str, tuple[float, float]]:
    """The means of each component of the reward in the first and in the last steps."""
    names = {name for step in signs.steps for name in step if name.startswith(COMPONENT)}
    found = {name: signs.ends(name) for name in sorted(names)}
    return {name: ends for name, ends in found.items() if ends is not None}


def _gained(signs: Signs, pays: float, *, is_cut: bool) -> tuple[str, str, str]:
    """The quantity that rose with the reward: its name, its figures, and its metric. `pays` is `_length_pays`."""
    lengths = signs.ends("batch/sampled_tokens") or (1.0, 1.0)
    is_longer = not 1 / LONGER < lengths[1] / max(1.0, lengths[0]) < LONGER
    by_length = (is_cut or is_longer) and abs(pays) >= BY_LENGTH
    components = _components(signs)
    name = max(components, key=lambda one: components[one][1] - components[one][0], default="")
    first, last = components.get(name, (0.0, 0.0))
    if not by_length and last - first > GAIN:
        short = name.removeprefix(COMPONENT)
        return "a component", f"{short} rose from {number(first)} to {number(last)}", name
    if by_length or abs(pays) >= LENGTH_ALONE:
        return (
            "length",
            f"episodes went from {lengths[0]:.0f} to {lengths[1]:.0f} sampled tokens, and within groups length and reward "
            f"correlate by {pays:.2f}",
            "batch/sampled_tokens",
        )
    return "something unrecorded", "no recorded component rose with it", "batch/reward"


def _length_pays(summaries: Sequence[EpisodeSummary]) -> float:
    """The correlation of reward and length within groups."""
    groups: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in summaries:
        if one.reward is not None and one.group:
            groups[one.group].append((one.reward, one.num_tokens))
    apart = [
        (reward - fmean(r for r, _ in group), tokens - fmean(t for _, t in group))
        for group in groups.values()
        for reward, tokens in group
    ]
    if len(apart) < FEWEST_PAIRS:
        return 0.0
    rewards, lengths = np.array(apart).T
    size = float(np.sqrt((rewards**2).sum() * (lengths**2).sum()))
    return float((rewards * lengths).sum()) / size if size else 0.0
