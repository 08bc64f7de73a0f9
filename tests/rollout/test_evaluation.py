"""Held-out measurements: what is counted, and how sure we are."""

import random
import re
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.cli.summary import print_reports
from areal_sdk.errors import ConfigError
from areal_sdk.records.estimates import bootstrap, pass_at_k, share_of_tasks, wilson
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.types import ErrorKind, Outcome
from tests.rollout.simulation import simulate, tasks
from tests.toolbox.scripted_episodes import Scripted

YES, NO = Outcome.scored(1.0), Outcome.scored(0.0)


@pytest.fixture
def report() -> EvalReport:
    """Five tasks: two were solved, one was not, one failed and one abstained."""
    outcomes = {
        "t0": [YES],
        "t1": [Outcome.scored(0.5, success=True)],
        "t2": [NO],
        "t3": [Outcome.failed(ErrorKind.AGENT, "agent x: KeyError: 'a'")],
        "t4": [Outcome.abstained("no key")],
    }
    return simulate(evaluate_tasks(Scripted(outcomes), tasks(5), split="held-out"))


def test_tasks_episodes_and_verdicts_are_counted(report: EvalReport) -> None:
    assert (report.split, report.num_tasks, report.num_episodes) == ("held-out", 5, 5)
    assert report.num_scored == 3


def test_success_is_over_verdicts_and_solved_over_all_tasks(report: EvalReport) -> None:
    assert report.success is not None
    assert report.success.value == pytest.approx(2 / 3)
    assert report.solved == pytest.approx(2 / 5), "an episode without a verdict solved nothing"


def test_a_reward_is_over_the_episodes_that_have_one(report: EvalReport) -> None:
    assert report.reward is not None
    assert report.reward.value == 0.5


def test_errors_are_counted_by_kind_and_the_first_one_is_kept(report: EvalReport) -> None:
    assert report.errors == {"agent": 1, "abstain": 1}
    assert report.first_errors["agent"] == "agent x: KeyError: 'a'"
    assert report.metrics()["errors/agent"] == 1.0


def test_a_report_is_read_from_the_numbers_that_it_wrote() -> None:
    counted = Outcome.scored(1.0, metrics={"searches": 3.0})
    outcomes = {f"t{i}": [counted, NO, Outcome.abstained("no key")] for i in range(4)}
    named = [replace(task, data={"source": "ab"[i % 2]}) for i, task in enumerate(tasks(4))]
    report = simulate(evaluate_tasks(Scripted(outcomes), named, samples=3, num_available=9))
    assert set(report.by_source) == {"a", "b"}
    again = EvalReport.from_metrics("eval", report.metrics())
    assert again.metrics() == report.metrics()
    assert again.metrics()["outcome/searches"] == 3.0
    assert (again.success, again.of_tasks) == (report.success, "4 of 9")


def test_episodes_that_never_called_the_model_are_said() -> None:
    outcomes = {"t0": [YES], "t1": [NO], "t2": [Outcome.abstained("no key")]}
    silent = simulate(evaluate_tasks(Scripted(outcomes, is_silent=True), tasks(3)))
    assert silent.uncalled == "2 of 3 episodes never called the model"
    assert EvalReport.from_metrics("eval", silent.metrics()).uncalled == silent.uncalled
    assert simulate(evaluate_tasks(Scripted(outcomes), tasks(3))).uncalled == ""


def test_nothing_scored_is_no_rate_and_not_a_zero() -> None:
    failed = {"t0": [Outcome.failed(ErrorKind.TIMEOUT, "late")]}
    report = simulate(evaluate_tasks(Scripted(failed), tasks(1)))
    assert report.success is None
    assert report.reward is None
    assert report.pass_at == {}
    assert "success" not in report.metrics()


def test_pass_at_k_is_estimated_over_tasks_with_enough_samples() -> None:
    outcomes = {"t0": [YES, NO, NO, NO], "t1": [NO, NO, NO, NO]}
    report = simulate(evaluate_tasks(Scripted(outcomes), tasks(2), samples=4))
    values = {k: estimate.value for k, estimate in report.pass_at.items()}
    assert values == {1: 0.125, 2: 0.25, 4: 0.5}
    assert report.success is not None
    assert report.success.value == 0.125


def test_pass_at_k_says_over_how_many_tasks_it_is() -> None:
    """The number tells an average over the tasks whose agent did not fail from one over all."""
    failed = Outcome.failed(ErrorKind.AGENT, "ValueError")
    outcomes = {
        "t0": [YES, NO, NO, NO],
        "t1": [NO, NO, failed, failed],
        "t2": [failed, NO, NO, failed],
        "t3": [failed, NO, failed, failed],
    }
    report = simulate(evaluate_tasks(Scripted(outcomes), tasks(4), samples=4))
    assert set(report.pass_at) == {1, 2}, "one task of four says nothing of four attempts"
    assert report.pass_tasks == {2: 3}
    assert report.metrics()["pass@2_tasks"] == 3.0
    assert EvalReport.from_metrics("eval", report.metrics()).pass_tasks == {2: 3}
    assert "@1=0.06 @2=0.17 (3 tasks)  4 " in table_of(report)


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        (
            [[YES, NO]] * 3 + [[NO, NO]] * 7,
            "the attempts at 3 of 10 tasks differ in their rewards, from",
        ),
        ([[NO, NO]] * 10, "the attempts at 0 of 10 tasks differ .*: show an example in the prompt"),
        ([[YES, YES]] * 10, "the attempts at 0 of 10 tasks differ .*: take harder tasks"),
        (
            [[NO]] * 10,
            "all 10 attempts earned the same: --samples 8 says whether sampled ones differ",
        ),
        ([[NO]] * 9 + [[YES]], None),
        ([[NO]] * 7, None),
        ([[Outcome.abstained("no key")] * 2] * 10, None),
    ],
    ids=["some", "none", "all", "one sample", "one success", "few", "nothing scored"],
)
def test_an_evaluation_says_what_a_run_could_learn_from(
    attempts: list[list[Outcome]], said: str | None
) -> None:
    outcomes = {f"t{number}": of_task for number, of_task in enumerate(attempts)}
    samples = len(attempts[0])
    report = simulate(evaluate_tasks(Scripted(outcomes), tasks(len(attempts)), samples=samples))
    assert EvalReport.from_metrics("eval", report.metrics()).signal == report.signal
    if said is None:
        assert report.signal == ""
    else:
        assert re.match(said, report.signal)


def table_of(report: EvalReport) -> str:
    @click.command()
    def shown() -> None:
        print_reports({"m": report})

    return CliRunner().invoke(shown).output


def test_no_more_than_max_concurrency_run_at_once() -> None:
    runner = Scripted({f"t{i}": [YES] for i in range(20)})
    report = simulate(evaluate_tasks(runner, tasks(20), max_concurrency=7))
    assert runner.max_running == 7
    assert report.duration_s == 3.0


def test_an_empty_split_is_a_config_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="no tasks in split 'eval'"):
        simulate(evaluate_tasks(Scripted({}), []))


@given(st.integers(1, 12), st.data())
def test_pass_at_k_equals_counting_all_subsets(n: int, data: st.DataObject) -> None:
    from itertools import combinations

    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    subsets = list(combinations(range(n), k))
    hits = sum(any(index < correct for index in subset) for subset in subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(hits / len(subsets))


@given(st.integers(1, 200), st.data())
def test_wilson_holds_its_rate_and_stays_in_bounds(n: int, data: st.DataObject) -> None:
    estimate = wilson(data.draw(st.integers(0, n)), n)
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0


def test_the_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    generator = random.Random(1)
    covered = 0
    for _ in range(60):
        estimate = bootstrap([generator.random() for _ in range(30)])
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered >= 51, "0.95 of 60 is 57; fewer than 51 has a chance below 1 in 100"


def test_the_same_tasks_give_the_same_interval() -> None:
    values = [0.0, 1.0, 0.5, 0.25]
    assert bootstrap(values) == bootstrap(values)


def test_more_samples_of_the_same_tasks_are_no_certainty_at_zero_or_one() -> None:
    for verdict, value in ((NO, 0.0), (YES, 1.0)):
        outcomes = {f"t{i}": [verdict] * 4 for i in range(2)}
        report = simulate(evaluate_tasks(Scripted(outcomes), tasks(2), samples=4))
        assert report.success == wilson(2 * int(value), 2)
        assert report.reward == report.success
        assert all(estimate == report.success for estimate in report.pass_at.values())


def test_the_interval_of_equal_rewards_outside_0_and_1_is_not_claimed() -> None:
    outcomes = {f"t{i}": [Outcome.scored(8.0)] for i in range(2)}
    report = simulate(evaluate_tasks(Scripted(outcomes), tasks(2)))
    assert str(report.reward) == "8.000 [?, ?]"
    assert report.metrics()["reward"] == 8.0
    assert "reward_low" not in report.metrics()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_an_interval_of_samples_lies_between_that_of_tasks_and_that_of_samples(
    correct: list[int],
) -> None:
    rates = [number / 4 for number in correct]
    estimate = share_of_tasks(rates, num_attempts=4 * len(rates))
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    independent = wilson(sum(correct), 4 * len(rates))
    width = estimate.high - estimate.low
    assert width >= independent.high - independent.low - 1e-9


def test_the_interval_of_samples_covers_the_rate_about_as_often_as_it_says() -> None:
    generator = random.Random(2)
    covered = 0
    for _ in range(200):
        chances = [generator.choice((0.1, 0.9)) for _ in range(20)]  # tasks differ: rate 0.5
        rates = [sum(generator.random() < chance for _ in range(4)) / 4 for chance in chances]
        estimate = share_of_tasks(rates, num_attempts=80)
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered >= 180
