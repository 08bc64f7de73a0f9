"""The groups that a batch takes, and their order."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from areal_sdk.rollout.callers import CallerTasks
from areal_sdk.rollout.groups import FinishedGroup, ScoredEpisode, triage
from areal_sdk.rollout.metrics import MAX_OUTCOME_METRICS, batch_metrics, outcome_metrics
from areal_sdk.rollout.tasks import IssuedTask, TaskSource, TaskStream
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.trainer import IdleGroups
from areal_sdk.types import Episode, Outcome, Task
from tests.rollout.simulation import Run, simulate, tasks, turn


def test_the_last_batch_takes_what_is_left_and_says_that_it_is_the_last() -> None:
    run = Run(num_tasks=5, epochs=1)
    simulate(run.steps(3))
    assert [batch.num_episodes for batch in run.batches] == [4, 4, 2]
    assert [batch.exhausted for batch in run.batches] == [False, False, True]


def test_uniform_groups_fill_the_batch_unless_dynamic_sampling() -> None:
    plain = Run(runner={"num_rewards": 1})
    simulate(plain.steps(3))
    assert all(batch.metrics["uniform_groups"] == 2 for batch in plain.batches)
    assert DropReason.ZERO_VARIANCE not in plain.ledger.dropped


def test_dynamic_sampling_refills_a_few_batches_worth_then_trains_what_it_has() -> None:
    run = Run(runner={"num_rewards": 1}, dynamic_sampling=True)
    simulate(run.steps(2))
    assert [len(batch.finished) for batch in run.batches] == [2, 2]
    assert run.ledger.dropped[DropReason.ZERO_VARIANCE] == 2 * 3 * 4


def test_dynamic_sampling_prefers_groups_with_something_to_learn() -> None:
    run = Run(runner={"num_rewards": 2}, dynamic_sampling=True, num_tasks=50)
    simulate(run.steps(10))
    assert all(batch.metrics["uniform_groups"] == 0 for batch in run.batches)


def test_dynamic_sampling_keeps_uniform_groups_that_still_teach() -> None:
    """`running_baseline` compares an episode with earlier ones: no group of it is idle."""
    run = Run(runner={"num_rewards": 1}, dynamic_sampling=True, idle_groups=IdleGroups.NONE)
    simulate(run.steps(3))
    assert all(batch.metrics["uniform_groups"] == 2 for batch in run.batches)
    assert DropReason.ZERO_VARIANCE not in run.ledger.dropped


@pytest.mark.parametrize("idle", IdleGroups)
@pytest.mark.parametrize(
    ("lengths", "reward", "turn_rewards", "is_idle"),
    [
        ((2, 2), (1.0, 1.0), None, (True, True, False)),
        ((1, 2), (1.0, 1.0), None, (True, False, False)),  # with a discount the quick one is better
        ((2, 2), (1.0, 0.0), None, (False, False, False)),
        ((2, 2), (1.0, 1.0), ((0.0, 1.0), (1.0, 0.0)), (False, False, False)),
        ((2, 2), (1.0, 1.0), ((0.0, 1.0), (0.0, 1.0)), (True, True, False)),
    ],
    ids=["equal", "a quicker one", "other rewards", "other turn rewards", "equal turn rewards"],
)
def test_which_groups_are_idle_is_said_by_the_algorithm(
    lengths: tuple[int, int],
    reward: tuple[float, float],
    turn_rewards: tuple[tuple[float, ...], tuple[float, ...]] | None,
    is_idle: tuple[bool, bool, bool],
    idle: IdleGroups,
) -> None:
    members = []
    for sibling in range(2):
        given = turn_rewards[sibling] if turn_rewards else ()
        outcome = Outcome.scored(reward[sibling], turn_rewards=given)
        turns = tuple(turn(0, prompt=(number,)) for number in range(lengths[sibling]))
        scored = triage(Episode(f"e{sibling}", Task("t"), turns, outcome, sibling=sibling))
        assert isinstance(scored, ScoredEpisode)
        members.append(scored)
    group = FinishedGroup("g", IssuedTask(Task("t"), epoch=0, position=0), tuple(members))
    expected = dict(
        zip(
            (IdleGroups.EQUAL_REWARDS, IdleGroups.EQUAL_EPISODES, IdleGroups.NONE),
            is_idle,
            strict=True,
        )
    )
    assert group.is_idle(idle) is expected[idle]


def test_a_batch_of_several_sources_says_the_reward_of_each() -> None:
    groups = []
    for source, reward in (("sums", 1.0), ("words", 0.25), ("words", 0.75)):
        task = Task(source, {"source": source})
        scored = triage(Episode("e", task, (turn(0),), Outcome.scored(reward)))
        assert isinstance(scored, ScoredEpisode)
        groups.append(FinishedGroup("g", IssuedTask(task, epoch=0, position=0), (scored,)))
    numbers = batch_metrics(groups, version=0)
    by_source = {name: value for name, value in numbers.items() if name.startswith("source/")}
    assert by_source == {
        "source/sums/reward": 1.0,
        "source/sums/episodes": 1.0,
        "source/words/reward": 0.5,
        "source/words/episodes": 2.0,
    }
    assert "source/sums/reward" not in batch_metrics(groups[:1], version=0)


@pytest.mark.parametrize(
    ("issued", "source"),
    [
        (IssuedTask(Task("7", {"source": "sums"}), epoch=0, position=7), "sums"),
        (IssuedTask(Task("8", {"family": "sums"}), epoch=0, position=8), "sums"),
        (IssuedTask(Task("9"), epoch=0, position=9), ""),
        (CallerTasks().next("alice"), "alice"),
    ],
    ids=["source", "family", "none", "caller"],
)
def test_a_group_names_the_source_of_its_rewards(issued: IssuedTask, source: str) -> None:
    assert FinishedGroup("g", issued, ()).to_trajectory_group().source == source


def test_a_batch_has_the_means_of_what_its_outcomes_carry() -> None:
    carried: tuple[dict[str, float], ...] = (
        {"searches": 1.0, "found": 1.0},
        {"searches": 4.0},
        {},
    )
    members = []
    for sibling, metrics in enumerate(carried):
        outcome = Outcome.scored(float(sibling), metrics=metrics)
        scored = triage(Episode("e", Task("t"), (turn(0),), outcome, sibling=sibling))
        assert isinstance(scored, ScoredEpisode)
        members.append(scored)
    group = FinishedGroup("g", IssuedTask(Task("t"), epoch=0, position=0), tuple(members))
    numbers = batch_metrics([group], version=0)
    assert (numbers["outcome/searches"], numbers["outcome/found"]) == (2.5, 1.0)


def test_a_batch_says_how_many_episodes_called_a_tool_of_those_that_were_offered_one() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}
    without, with_tools = turn(0), replace(turn(0), offers_tools=True)
    episodes = [
        (without,),
        (replace(without, message=call),),  # text that looked like a call, say
        (with_tools,),
        (with_tools, replace(turn(0, prompt=(1, 2, 3, 100)), offers_tools=True, message=call)),
    ]
    members = []
    for sibling, turns in enumerate(episodes):
        scored = triage(Episode("e", Task("t"), turns, Outcome.scored(1.0), sibling=sibling))
        assert isinstance(scored, ScoredEpisode)
        members.append(scored)
    issued = IssuedTask(Task("t"), epoch=0, position=0)
    numbers = batch_metrics([FinishedGroup("g", issued, tuple(members))], version=0)
    assert (numbers["offered_tools"], numbers["called_tools"]) == (2.0, 0.5)
    without_tools = batch_metrics([FinishedGroup("g", issued, tuple(members[:2]))], version=0)
    assert not {"offered_tools", "called_tools"} & without_tools.keys()


def test_no_more_names_are_kept_than_metrics_have() -> None:
    by_task = [{f"task-{number}": 1.0, "searches": 2.0} for number in range(100)]
    kept = outcome_metrics(by_task)
    assert len(kept) == MAX_OUTCOME_METRICS
    assert kept["outcome/searches"] == 2.0


def known_tasks() -> TaskSource:
    return TaskSource(tasks(7))


def endless_tasks() -> TaskSource:
    endless = (Task(f"t{number}") for number in itertools.count())
    return TaskSource(TaskStream(endless, again=lambda: endless, what="endless", size=5))


@pytest.mark.parametrize("make_source", [known_tasks, endless_tasks])
def test_the_deterministic_order_survives_a_kill_and_a_resume(
    make_source: Callable[[], TaskSource],
) -> None:
    def make(**options: Any) -> Run:
        options.setdefault("source", make_source())
        return Run(
            eta=0,
            in_order=True,
            batch=4,
            group_size=2,
            runner={"failure_rate": 0.3, "seed": 9},
            **options,
        )

    whole = simulate(make().steps(9)).trained_groups
    for killed_at in range(1, 9):
        first = make()

        async def until_killed(first: Run = first, steps: int = killed_at) -> dict[str, object]:
            async with first.dispatcher:
                for _ in range(steps):
                    await first.step()
                state = first.source.state()  # the checkpoint
                await asyncio.sleep(2.0)  # and some work that will be lost
            return state

        state = simulate(until_killed())
        source = make_source()
        source.restore(state)
        second = make(version=killed_at, source=source, ledger=Ledger())
        simulate(second.steps(9 - killed_at))
        assert first.trained_groups + second.trained_groups == whole


@pytest.mark.parametrize(("dynamic_sampling", "num_rewards"), [(False, 2), (True, 2), (True, 1)])
def test_the_deterministic_order_does_not_depend_on_what_ends_first(
    dynamic_sampling: bool, num_rewards: int
) -> None:
    def trained(clock_seed: int) -> list[tuple[str, list[int]]]:
        run = Run(
            eta=0,
            in_order=True,
            dynamic_sampling=dynamic_sampling,
            batch=8,
            group_size=2,
            num_tasks=60,
            runner={
                "failure_rate": 0.3,
                "seed": 9,
                "clock_seed": clock_seed,
                "num_rewards": num_rewards,
                "straggler_rate": 0.2,
            },
        )
        batches = simulate(run.steps(9)).batches
        groups = [group for batch in batches for group in batch.finished]
        return [(group.id, [member.sibling for member in group.members]) for group in groups]

    assert trained(0) == trained(1) == trained(2)
