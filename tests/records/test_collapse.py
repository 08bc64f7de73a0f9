"""The collapse of a run is told in time: on recorded runs, and on values chosen here."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from areal_sdk.records.diagnosis.collapse import (
    Fall,
    Finding,
    Forget,
    InVain,
    Keep,
    Proved,
    Watch,
    watched,
)
from areal_sdk.records.diagnosis.course import course_of

Steps = list[dict[str, Any]]
Runs = Mapping[str, Mapping[str, Any]]

HERE = Path(__file__).parent
WITH_COMMAND: Runs = json.loads((HERE / "recorded_runs.json").read_text())
"""Runs of the real command. The bounds were chosen with these, and with the set `chosen` below."""
IN_ONE_PROCESS: Mapping[str, Runs] = json.loads((HERE / "one_process_runs.json").read_text())
"""`benchmarks/record_runs.py`: tasks of the gauntlet at right and wrong rates. `second` and `third` were judged once, and
led to changes; `apart` was judged when nothing was changed any more."""


def recorded(run: Mapping[str, Any]) -> Steps:
    count = run["num_steps"]
    columns = {k: v if isinstance(v, list) else [v] * count for k, v in run["steps"].items()}
    return [
        {"step": i + 1, "batch/staleness_max": 1.0, **{k: v[i] for k, v in columns.items()}}
        for i in range(count)
    ]


def became(steps: Steps) -> str:
    """The fate of a run by a rule that knows its end: the last quarter against the best six steps
    before."""
    rewards = [step["batch/reward"] for step in steps]
    quarter = len(rewards) // 4
    best = max(fmean(rewards[i : i + 6]) for i in range(len(rewards) - quarter - 5))
    kept = fmean(rewards[-quarter:]) / best if best else 1.0
    return "collapsed" if kept < 0.5 else "sound" if kept >= 0.75 else "wavering"


def told(runs: Runs) -> dict[str, tuple[int, int, int]]:
    """The number of runs of each kind, and the numbers that the guard and the verdict call fallen."""
    counts: dict[str, Counter[str]] = {}
    for run in runs.values():
        steps = recorded(run)
        of = counts.setdefault(became(steps), Counter())
        of["runs"] += 1
        of["guard"] += any(isinstance(found, Fall) for _, found in watched(steps))
        of["verdict"] += course_of(steps).fell
    return {kind: (of["runs"], of["guard"], of["verdict"]) for kind, of in counts.items()}


TOLD: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    "command": {"sound": (23, 0, 0), "wavering": (2, 2, 2), "collapsed": (3, 3, 3)},
    "chosen": {"sound": (7, 0, 1), "wavering": (2, 0, 0), "collapsed": (3, 2, 1)},
    "second": {"sound": (9, 0, 0), "wavering": (1, 0, 0), "collapsed": (6, 5, 3)},
    "third": {"sound": (14, 0, 0), "wavering": (1, 0, 0), "collapsed": (1, 1, 0)},
    "apart": {"sound": (5, 0, 0), "wavering": (4, 1, 0), "collapsed": (3, 1, 1)},
}
"""The number of runs of each set and kind, those that the guard calls fallen, and those that the
verdict does."""


def test_no_sound_run_is_taken_for_a_collapse_and_most_collapses_are_seen() -> None:
    sets = {"command": WITH_COMMAND, **IN_ONE_PROCESS}
    assert {name: told(runs) for name, runs in sets.items()} == TOLD


def test_a_collapse_is_seen_within_some_steps() -> None:
    expected = {
        "rate of 5e-3": 12,
        "rate of 5e-2": 5,
        "rloo, rate of 5e-3": 9,
        "smollm2, rate of 3e-5, collapse": 20,
    }
    assert {name: falls(recorded(WITH_COMMAND[name]))[0] for name in expected} == expected


def falls(steps: Steps, *, needs_alarm: bool = False) -> list[int]:
    found = watched(steps, Watch(needs_alarm))
    return [step for step, finding in found if isinstance(finding, Fall)]


def played(rewards: list[float], **metrics: Any) -> Steps:
    """Steps of 8 groups of 4 whose rewards are 0 or 1; `metrics`: a value, or one a step."""
    usual = {
        "batch/groups": 8.0,
        "batch/episodes": 32.0,
        "batch/reward_std": 0.5,
        "batch/staleness_max": 1.0,
        "batch/truncated": 0.0,
        "train/num_updates": 1.0,
        "train/num_trained": 320.0,
        "train/kl_step": 5e-3,
        "train/entropy": 0.5,
    }
    given = usual | {key.replace("__", "/", 1): value for key, value in metrics.items()}
    return [
        {
            "step": number + 1,
            "batch/success": value,
            "batch/reward": value,
            **{k: v[number] if isinstance(v, list) else v for k, v in given.items()},
        }
        for number, value in enumerate(rewards)
    ]


LEVEL = [0.6, 0.62, 0.58, 0.6, 0.61, 0.59]
RISING = [0.6 + 0.02 * number for number in range(18)]


def findings(steps: Steps) -> list[tuple[int, Finding]]:
    return list(watched(steps))


def test_the_weights_of_the_beginning_are_kept_and_better_ones_once_they_have_proved_it() -> None:
    found = findings(played([*LEVEL, *RISING]))
    kinds = [(type(finding), step) for step, finding in found]
    assert kinds[0] == (Keep, 1)
    assert [kind for kind, _ in kinds[1:3]] == [Keep, Proved]
    (_, begun), (_, proved) = kinds[1:3]
    # One batch was sampled before the weights that are the candidate, and three by these or later ones.
    assert proved - begun == 3
    assert [finding for _, finding in found[1:3]] == [Keep(begun - 1), Proved(begun - 1)]


def test_a_candidate_that_does_not_keep_its_promise_is_forgotten() -> None:
    found = findings(played([*LEVEL * 2, *[0.9] * 3, *[0.4] * 3]))
    assert [type(finding) for _, finding in found] == [Keep, Keep, Forget]


def test_a_collapse_goes_back_to_the_kept_weights_after_three_batches() -> None:
    [_, (step, fall)] = findings(played([*LEVEL * 3, 0.05, 0.1, 0.0]))
    assert step == 21
    assert fall == Fall(0, "success was 0.60 and is 0.05 in the last 3 batches")


@pytest.mark.parametrize(
    "rewards",
    [
        [*LEVEL * 3, 0.0, 0.1, 0.6, 0.0, 0.6],  # single batches of hard tasks
        [*LEVEL * 2, *[0.5] * 40],  # a sixth is lost for good: not worth what going back costs
        [0.0] * 40,
        [0.1, 0.0, 0.05, 0.1, 0.0] * 8,
    ],
)
def test_less_is_no_collapse(rewards: list[float]) -> None:
    assert falls(played(rewards)) == []


def test_a_shallow_fall_must_last() -> None:
    [step] = falls(played([*LEVEL * 2, *[0.37] * 30]))
    assert step == 12 + 23  # with one batch from before


def test_a_policy_that_hardly_moved_cannot_have_collapsed() -> None:
    rewards = [*LEVEL * 3, 0.05, 0.1, 0.0]
    assert falls(played(rewards, train__kl_step=1e-6)) == []
    assert falls(played(rewards, train__kl_step=None)) == [21]  # nobody measured it


def test_where_tasks_change_by_themselves_an_alarm_must_sound_too() -> None:
    rewards = [*LEVEL * 3, *[0.05] * 6]
    for alarm in (
        {"train__entropy": [0.5] * 18 + [1.6] * 6},
        {"train__entropy": [0.5] * 18 + [0.01] * 6},
        {"train__kl_step": [5e-3] * 18 + [0.5] * 6},
        {"train__kl_behaviour_after": [0.0] * 18 + [2.0] * 6},
        {"batch__truncated": [0.0] * 18 + [0.9] * 6},
    ):
        assert falls(played(rewards, **alarm), needs_alarm=True)[:1] == [21], alarm
    assert falls(played(rewards), needs_alarm=True) == []


def test_going_back_in_vain_tells_of_rewards_that_have_changed() -> None:
    gone = [*LEVEL * 3, *[0.0] * 12]
    (_, fall), (step, vain) = findings(played(gone))[1:]
    assert isinstance(fall, Fall)
    assert vain == InVain(0, "reward is 0.00 with them too, and was 0.60")
    assert step == 22
    helped = [*LEVEL * 3, *[0.0] * 3, *LEVEL]
    assert [type(finding) for _, finding in findings(played(helped))[1:]] == [Fall]


def test_rewards_without_a_success_are_judged_by_their_spread() -> None:
    steps = played([*LEVEL * 3, *[0.0] * 6])
    for step in steps:
        step |= {
            "batch/reward": 40 * step["batch/reward"] - 10,
            "batch/success": 0.0,
            "batch/reward_std": 10.0,
        }
    [_, (_, fall), *_] = findings(steps)
    assert isinstance(fall, Fall)
    assert fall.why.startswith("reward was 14.08 and is -10.00 in the last 3")


def test_a_batch_without_rewards_is_none() -> None:
    steps = played([*LEVEL * 3, 0.05, 0.1, 0.0])
    empty = {"step": 20, "batch/groups": 0.0, "batch/episodes": 0.0}
    assert falls([*steps[:19], empty, *steps[19:]]) == [21]


def test_a_resumed_watch_finds_what_an_uninterrupted_one_finds() -> None:
    steps = played([*LEVEL, *RISING, *[0.1] * 4, *LEVEL])
    whole = findings(steps)
    for cut in range(1, len(steps)):
        watch = Watch()
        found = list(watched(steps[:cut], watch))
        saved = json.loads(json.dumps(watch.to_json()))
        found += watched(steps[cut:], Watch.restore(saved))
        assert found == whole, cut
