"""The models that answered, compared by their sessions."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk import Episode, Outcome, Task
from areal_sdk.testing import RecordedRun, make_episode
from areal_sdk_traces.arms import MIXED, arms_of, differences
from areal_sdk_traces.command import traces


def session(name: str, reward: float | None, *models: str) -> Episode:
    said = make_episode("Hello.")
    outcome = Outcome.abstained() if reward is None else Outcome.scored(reward)
    turns = tuple(replace(said.turns[0], policy=model) for model in models)
    return replace(said, id=name, task=Task("ann"), turns=turns, outcome=outcome)


def sessions(model: str, *rewards: float | None) -> list[Episode]:
    return [session(f"{model}-{i}", reward, model, model) for i, reward in enumerate(rewards)]


def test_a_session_counts_for_the_model_that_answered_all_of_it() -> None:
    episodes = [
        *sessions("base", 0.0, 1.0, None),
        *sessions("trained", 1.0),
        session("both", 1.0, "base", "trained"),
        session("empty", None),
    ]
    arms = arms_of((one, one.reward) for one in episodes)
    assert {name: (arm.num_sessions, arm.scores) for name, arm in arms.items()} == {
        "base": (3, [0.0, 1.0]),
        "trained": (1, [1.0]),
        MIXED: (1, [1.0]),
    }
    assert [(one.arm, one.base) for one in differences(arms)] == [("trained", "base")]
    assert [(one.arm, one.base) for one in differences(arms, "trained")] == [("base", "trained")]


@pytest.mark.parametrize(
    ("good", "is_shown"), [(20, True), (12, False)], ids=["far apart", "close together"]
)
def test_a_difference_is_shown_if_its_interval_leaves_zero_out(good: int, is_shown: bool) -> None:
    base, trained = [1.0] * 10 + [0.0] * 20, [1.0] * good + [0.0] * (30 - good)
    arms = arms_of((s, s.reward) for s in (*sessions("base", *base), *sessions("new", *trained)))
    (found,) = differences(arms)
    assert found.is_shown == is_shown
    assert found.interval.value == pytest.approx((good - 10) / 30)


def test_scores_that_are_no_shares_are_compared_by_their_means() -> None:
    base, new = (1.0, 2.0, 3.0, 2.0), (7.0, 9.0, 8.0, 8.0)
    arms = arms_of((s, s.reward) for s in (*sessions("base", *base), *sessions("new", *new)))
    (found,) = differences(arms)
    assert found.interval.low > 4.0
    (unknown,) = differences(arms_of((s, 8.0) for s in (*sessions("a", 8.0), *sessions("b", 8.0))))
    assert not unknown.is_shown


def test_the_command_tells_the_arms_of_a_run(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run")
    for one in (*sessions("base", 0.0, 0.0, None), *sessions("trained", 1.0, 1.0)):
        recorded.measure(one, split="live")
    recorded.close()
    path = str(tmp_path / "run")
    told = CliRunner().invoke(traces, ["arms", path], catch_exceptions=False).output
    assert "base     3 sessions, 2 scored, mean 0.000 [0.000, 0.658]" in told
    assert "trained  2 sessions, 2 scored, mean 1.000 [0.342, 1.000]" in told
    assert "trained - base  1.000 [0.070, 1.000]" in told
    ended = CliRunner().invoke(traces, ["arms", path, "--base", "third"])
    assert "known: base, trained" in str(ended.exception)
