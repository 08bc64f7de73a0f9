"""The verdict on a run: on recorded runs, and rule by rule on figures chosen here."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from areal_sdk.cli.records.inspect import inspect
from areal_sdk.cli.summary import print_summary
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.records.diagnosis.course import course_of
from areal_sdk.records.diagnosis.verdict import Need, RunVerdict, verdict_of, verdict_of_losses
from areal_sdk.records.report import report_of
from areal_sdk.telemetry import MetricsLog, RunDir

Steps = list[dict[str, Any]]

RECORDED: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("recorded_runs.json").read_text()
)
"""Runs of the real command, trimmed to the metrics that a verdict reads. What never changes is one number."""

FOUND: Mapping[str, tuple[Need | None, str]] = {
    # guess_number on `tiny`, begun with weights that imitated weak games
    "rate of 5e-4": (None, "healthy: success 0.60 -> 0.78"),
    "rate of 5e-4, another seed": (None, "healthy: success 0.61 -> 0.73"),
    "rate that follows a bound": (None, "healthy: success 0.59 -> 0.74"),
    "rate that follows a bound, another seed": (None, "healthy: success 0.57 -> 0.85"),
    "rate that follows a bound, 140 steps": (None, "healthy: success 0.60 -> 0.97"),
    "rate of 1e-3, bounded": (None, "healthy: success 0.63 -> 0.88"),
    "rate of 1e-3": (None, "healthy: success 0.65 -> 0.84"),
    "rate of 1e-7": (Need.RATE, "hardly moves, by 2e-11 nats a token a step: raise"),
    "rate of 2e-5": (Need.RATE, "hardly moves, by 1e-06 nats a token a step: raise"),
    "rate of 5e-3": (
        Need.RATE,
        "jumped by 1.4 nats a token in step 8; success was 0.62 at step 6 and",
    ),
    "rate of 5e-2": (
        Need.RATE,
        "jumped by 4 nats a token in step 1; success was 0.47 at step 3 and",
    ),
    "reward 0 for all": (
        Need.SIGNAL,
        "0% of 140 groups differ, and their mean is 0: show an example",
    ),
    "reward 1 for all": (None, "nothing left to learn: success is 1.00"),
    "one turn of three": (Need.ROOM, "86% of the episodes got no reward and are not trained"),
    "reward by chance": (Need.REWARD, "yet success 0.56 -> 0.48 in 40 steps"),
    "reward with noise of 0.7": (None, "healthy: success 0.60 -> 0.69"),
    "reward by chance for one secret in seven": (
        Need.REWARD,
        "yet reward 0.04 -> 0.03 in 40 steps",
    ),
    "one turn of three, masked": (Need.ROOM, "85% of the episodes got no reward"),
    "rloo, rate of 5e-3": (Need.RATE, "jumped by 1.6 nats a token in step 4"),
    "samples up to 8 updates old, rate of 2e-3": (
        Need.RATE,
        "jumped by 1.1 nats a token in step 36",
    ),
    "no sample older than its weights": (None, "healthy: success 0.58 -> 0.7"),
    # a calculator on SmolLM2
    "smollm2, rate of 3e-5": (None, "healthy: success 0.12 -> 0.99"),
    "smollm2, rate of 3e-5, collapse": (
        Need.RATE,
        "jumped by 0.45 nats a token in step 15; success was 0.99 at step 14 and is 0.00 at step 20",
    ),
    "smollm2, bound of 0.003": (None, "healthy: success 0.09 -> 0.72"),
    "smollm2, bound of 0.01": (None, "healthy: success 0.08 -> 0.96"),
    "smollm2, bound of 0.03": (None, "healthy: success 0.15 -> 1.00"),
    # other tasks on `tiny`, before steps were measured
    "reverse, rate of 2e-5": (None, "healthy: success 0.67 -> 0.77"),
    "sort, rate of 2e-5": (None, "healthy: success 0.54 -> 0.67"),
}

SETTINGS = {
    "algorithm": {"name": "grpo"},
    "trainer": {"learning_rate": 2e-5, "trust_region": 0.0},
    "rollout": {"batch": 32, "max_staleness": 2, "truncated": "score"},
}


def recorded(name: str) -> Steps:
    run = RECORDED[name]
    count = run["num_steps"]
    columns = {k: v if isinstance(v, list) else [v] * count for k, v in run["steps"].items()}
    return [{"step": i + 1, **{k: v[i] for k, v in columns.items()}} for i in range(count)]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_gets_its_verdict(name: str) -> None:
    verdict = verdict_of(recorded(name), RECORDED[name]["settings"])
    missing, said = FOUND[name]
    assert verdict is not None
    assert verdict.missing is missing
    assert said in str(verdict)


def played(success: list[float], **metrics: Any) -> Steps:
    """Steps of 8 groups of 4, healthy but for `metrics`: a value, or one a step."""
    usual = {
        "batch/groups": 8.0,
        "batch/episodes": 32.0,
        "batch/uniform_groups": 2.0,
        "batch/reward_std": 0.5,
        "batch/truncated": 0.0,
        "train/num_updates": 1.0,
        "train/num_trained": 320.0,
        "train/kl_step": 2e-3,
        "train/staleness_mean": 1.0,
        "train/ess": 0.95,
        "train/entropy": 0.5,
    }
    given = {**usual, **{key.replace("__", "/", 1): value for key, value in metrics.items()}}
    return [
        {
            "step": number + 1,
            "batch/success": value,
            "batch/reward": value,
            **{k: v[number] if isinstance(v, list) else v for k, v in given.items()},
        }
        for number, value in enumerate(success)
    ]


def judged(steps: Steps) -> RunVerdict:
    verdict = verdict_of(steps, SETTINGS)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(("groups", "size"), [(1, 4), (1, 8), (16, 8)])
def test_a_policy_that_never_changes_is_seldom_said_to_rise_or_to_fall(
    groups: int, size: int
) -> None:
    """The error is at most 5 of 100 runs, however rare a success is, and however many steps there
    are."""
    rng = np.random.default_rng(0)
    for chance in (0.02, 0.05, 0.5, 0.95):
        for num_steps in (8, 20, 60):
            found = [
                course_of(
                    played(
                        (rng.binomial(groups * size, chance, num_steps) / (groups * size)).tolist()
                    )
                )
                for _ in range(100)
            ]
            assert sum(course.rose for course in found) <= 5, (chance, num_steps)
            assert sum(course.fell for course in found) <= 5, (chance, num_steps)


@pytest.mark.parametrize("absurd", [10.0, -10.0, 1000.0, -1000.0])
@pytest.mark.parametrize("at", [0, 2, 30, 58, 59])
def test_one_absurd_reward_changes_no_verdict(absurd: float, at: int) -> None:
    rng = np.random.default_rng(1)
    rewards = rng.random((60, 64)) < np.linspace(0.1, 0.9, 60)[:, None]
    played_rewards = rewards.astype(float)
    played_rewards[at, 0] = absurd
    steps = played(
        [0.0] * 60,
        batch__reward=played_rewards.mean(axis=1).tolist(),
        batch__reward_std=played_rewards.std(axis=1).tolist(),
    )
    verdict = judged([{k: v for k, v in step.items() if k != "batch/success"} for step in steps])
    assert str(verdict).startswith("healthy: reward 0."), verdict


FLAT = [0.3, 0.32, 0.28, 0.3, 0.31, 0.29] * 4
RISING = [0.1 + 0.03 * number for number in range(24)]


@pytest.mark.parametrize(
    ("success", "metrics", "missing", "said"),
    [
        (RISING, {}, None, "healthy: success 0.15 -> 0.74 in 24 steps"),
        (RISING, {"train__kl_step": 1e-6}, None, "healthy"),
        ([0.97] * 24, {"batch__uniform_groups": 8.0}, None, "nothing left to learn: success is 0.97"),
        (FLAT[:6], {}, None, "too early to tell: success 0.30 -> 0.30 in 6 steps"),
        (
            [0.0] * 4,
            {"batch__uniform_groups": 8.0},
            Need.SIGNAL,
            "0% of 32 groups differ, and their mean is 0: show an example in the prompt",
        ),
        (
            [0.0] * 4,
            {"batch__uniform_groups": 8.0, "batch__truncated": 0.9},
            Need.SIGNAL,
            "90% of the episodes ran into a limit before they had ended, so raise rollout.max_turns",
        ),
        ([0.0], {"batch__uniform_groups": 8.0}, None, "too early to tell"),
        (
            FLAT,
            {"batch__uniform_groups": [2.0] * 3 + [8.0] * 21},
            Need.REWARD,
            "rewards differ by 0.5 within a batch, yet success 0.30 -> 0.29",
        ),
        (
            FLAT,
            {"train__num_updates": 0.0, "train__num_skipped_updates": 1.0},
            Need.GRADIENT,
            'the gradient was not finite: lower trainer.learning_rate, or set trainer.precision = "float32"',
        ),
        (
            FLAT,
            {"train__num_updates": 0.0, "train__num_trained": 0.0},
            Need.GRADIENT,
            "24 of 24 steps made no update: no sampled token is trained: look at rollout.truncated (score)",
        ),
        (
            FLAT,
            {"train__num_updates": 0.0},
            Need.GRADIENT,
            "no token has an advantage: look at the options of the algorithm, [algorithm.grpo]",
        ),
        (
            FLAT,
            {"train__kl_step": 4e-7},
            Need.RATE,
            "the policy hardly moves, by 4e-07 nats a token a step: raise trainer.learning_rate (2e-05)",
        ),
        (
            FLAT,
            {"train__kl_step": None, "train__kl_behaviour": 4e-7},
            Need.RATE,
            "hardly moves, by 4e-07",
        ),
        (
            FLAT,
            {"train__kl_step": None, "train__kl_behaviour": 0.0, "train__staleness_mean": 0.0},
            Need.REWARD,
            "rewards differ",
        ),
        (
            FLAT,
            {"train__kl_step": [2e-3] * 9 + [0.8] + [2e-3] * 14},
            Need.RATE,
            "the policy jumped by 0.8 nats a token in step 10: lower trainer.learning_rate (2e-05), or bound",
        ),
        (FLAT, {"batch__truncated": 0.6}, Need.ROOM, "60% of the episodes ran into a limit"),
        (
            FLAT,
            {"batch__truncated": [0.0] * 18 + [0.8] * 6, "batch__sampled_tokens": [20.0] * 18 + [230.0] * 6},
            Need.ROOM,
            "episodes grew from 20 to 230 sampled tokens, and 80% of them run into a limit (0% before): lower "
            "trainer.learning_rate (2e-05)",
        ),
        (
            FLAT,
            {"batch__truncated": [0.0] * 18 + [0.8] * 6, "batch__sampled_tokens": 230.0},
            Need.REWARD,
            "rewards differ",
        ),
        (
            [1.0] * 24,
            {"batch__unjudged_share": 0.8},
            Need.ROOM,
            "80% of the episodes got no reward and are not trained (unjudged_share): if a limit ended them",
        ),
        (
            FLAT,
            {"batch__stale_share": 0.5},
            Need.FRESHNESS,
            "50% of the episodes were dropped as too old: raise rollout.max_staleness (2)",
        ),
        (
            FLAT,
            {"train__ess": 0.2, "train__staleness_mean": 6.0},
            Need.FRESHNESS,
            "samples are 6.0 updates old, and count as 20% of them (train/ess): lower rollout.max_staleness",
        ),
        (
            [*RISING[:20], *[0.02] * 8],
            {"train__entropy": [0.5] * 20 + [0.6, 1.8, 2.0] + [2.0] * 5},
            Need.STAY,
            "fall: success was 0.62 at step 20 and is 0.02 at step 28; entropy grew from 0.50 to 2.00, most at step 22",
        ),
        (  # an environment that kept state from episode to episode
            [*RISING[:20], *[0.02] * 8],
            {"train__kl_step": 2e-5, "batch__sampled_tokens": 4.0},
            Need.STAY,
            "success was 0.62 at step 20 and is 0.02 at step 28, and the updates since then can have cost 0.08 of it: look "
            "for what changed beside the policy",
        ),
        (
            [*RISING[:20], *[0.02] * 8],
            {"train__kl_step": 2e-3, "batch__sampled_tokens": 4.0},
            Need.STAY,
            "success was 0.62 at step 20 and is 0.02 at step 28: lower",
        ),
        (
            [*RISING[:20], *[0.02] * 8],
            {"train__kl_step": [2e-3] * 20 + [3.0] * 8},
            Need.RATE,
            "the policy jumped by 3 nats a token in step 28; success was 0.62 at step 20 and is 0.02",
        ),
        ([0.6, *FLAT], {}, Need.REWARD, "rewards differ"),
    ],
)  # fmt: skip
def test_the_first_thing_that_is_missing_is_named_with_its_figures_and_a_setting(
    success: list[float], metrics: dict[str, Any], missing: Need | None, said: str
) -> None:
    verdict = judged(played(success, **metrics))
    assert (verdict.missing, said in str(verdict)) == (missing, True), str(verdict)


def test_episodes_without_siblings_have_a_signal_where_they_have_an_advantage() -> None:
    alone = {"batch__episodes": 8.0, "batch__uniform_groups": 0.0}
    silent = judged(played(FLAT, **alone, train__share_without_advantage=1.0))
    assert silent.missing is Need.SIGNAL
    assert "0% of what was played differs in its rewards" in silent.figures
    assert judged(played(RISING, **alone, train__share_without_advantage=0.1)).missing is None


@pytest.mark.parametrize(
    ("differing", "missing"),
    [
        # of four groups a step, in a real run in which nothing was solved but by chance
        ("00001000000100000001001010020000000000", Need.SIGNAL),
        ("00000000222222000000000000000000000000", Need.REWARD),
    ],
)
def test_a_few_groups_that_differ_by_chance_are_no_signal(differing: str, missing: Need) -> None:
    numbers = [int(number) for number in differing]
    verdict = judged(
        played(
            [number / 32 for number in numbers],
            batch__groups=4.0,
            batch__episodes=32.0,
            batch__uniform_groups=[4.0 - number for number in numbers],
        )
    )
    assert verdict.missing is missing, verdict


def test_a_rate_that_follows_a_bound_is_not_what_to_lower() -> None:
    steps = played([*RISING[:20], *[0.02] * 8])
    auto = {**SETTINGS, "trainer": {"learning_rate": "auto", "trust_region": 0.3}}
    verdict = verdict_of(steps, auto)
    assert verdict is not None
    assert verdict.cure.startswith("lower trainer.trust_region (0.3); or take more episodes a step")


def test_a_rise_that_chance_may_have_made_is_not_called_chance() -> None:
    generator = random.Random(3)
    rising = [0.30 + 0.10 * step / 100 + generator.gauss(0.0, 0.09) for step in range(100)]
    course = course_of(played(rising))
    assert (course.leans_up, course.rose) == (True, False)
    assert str(judged(played(rising))).startswith("too early to tell: success 0.3")


def test_a_run_that_learns_nothing_after_a_warm_up_is_told_to_warm_up_longer() -> None:
    verdict = verdict_of(played(FLAT), {**SETTINGS, "sft": {"steps": 200}})
    assert verdict is not None
    assert "warm up longer (sft.steps, 200), take more episodes a step" in verdict.cure


def test_a_reward_that_moves_more_than_the_success_is_what_is_looked_at() -> None:
    steps = played([0.0] * 24)
    for step, reward in zip(steps, RISING, strict=True):
        step |= {"batch/reward": 100 * reward, "batch/reward_std": 20.0}
    assert str(judged(steps)) == "healthy: reward 14.50 -> 74.50 in 24 steps"


def test_everything_that_may_be_missing_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    assert [need for need in Need if f"| `{need}` |" not in page] == []


def test_what_is_not_known_yet_is_no_verdict() -> None:
    assert verdict_of([], SETTINGS) is None
    assert verdict_of([{"step": 1, "batch/groups": 0.0, "batch/episodes": 0.0}], SETTINGS) is None
    sparse = [{"step": n, "batch/groups": 8.0, "batch/reward": 0.5} for n in range(1, 12)]
    assert judged(sparse).missing is None
    assert course_of(sparse[:1]).told() == "reward 0.50 -> 0.50 in 1 step"


def losses(*values: float) -> Steps:
    return [{"step": n, "train/loss": value} for n, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("steps", "held_out", "missing", "said"),
    [
        (losses(*[2.0] * 4, *[1.0] * 8), [], None, "healthy: the loss 2 -> 1 in 12 steps"),
        (losses(*[2.0] * 12), [], Need.RATE, "the loss 2 -> 2 in 12 steps: raise trainer.learning_rate (2e-05)"),
        (losses(2.0, 2.0), [], None, "too early to tell"),
        (
            losses(*[2.0] * 4, *[0.1] * 8),
            [(0, 2.0), (6, 1.2), (12, 1.5)],
            Need.STAY,
            "fall: the held-out loss was 1.2 at step 6 and is 1.5 at step 12: take fewer steps",
        ),
        (losses(*[2.0] * 12), [(0, 2.0), (12, 1.5)], None, "healthy: the held-out loss 2 -> 1.5"),
        (losses(*[1.0] * 4, *[9.0] * 8), [], Need.STAY, "the loss was 1 at step 3 and is 9 at step 12"),
    ],
)  # fmt: skip
def test_a_run_that_learns_from_data_is_judged_by_its_loss(
    steps: Steps, held_out: list[tuple[int, float]], missing: Need | None, said: str
) -> None:
    events = [{"step": step, "loss": loss} for step, loss in held_out]
    verdict = verdict_of_losses(steps, events, SETTINGS)
    assert verdict is not None
    assert (verdict.missing, said in str(verdict)) == (missing, True), str(verdict)


def test_verdict_and_notices_are_shown_by_every_view_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config({"model": "tiny", "agent": "agent.py", **SETTINGS})
    log = MetricsLog(run.metrics)
    for step in played(FLAT, train__kl_step=4e-7):
        log.log("step", step)
        log.log("notice", {"step": step["step"], "level": "note", "text": "<b>slow</b>"})
    log.close()
    line = "rate: the policy hardly moves, by 4e-07 nats a token a step: raise trainer.learning_rate (2e-05)"
    told = "note, step 1 and 23 times later: <b>slow</b>"
    shown = CliRunner().invoke(inspect, [str(run.path)]).output
    assert f"verdict    {line}\n{told}\n" in shown
    whole = json.loads(CliRunner().invoke(inspect, [str(run.path), "--json"]).output)
    assert (whole["verdict"]["missing"], whole["notices"][0]["times"]) == ("rate", 24)
    page = report_of(run)
    assert f'<p class="problem">{line}</p>' in page
    assert "<td>step 1</td><td>note: &lt;b&gt;slow&lt;/b&gt;</td>" in page
    print_summary(RunSummary(str(run.path), 24, 24, 1.0, "steps", elapsed_s=2.0))
    end = f"{told}\nverdict: {line}\nlook for faults: areal-sdk why {run.path}\n"
    assert end in capsys.readouterr().out
