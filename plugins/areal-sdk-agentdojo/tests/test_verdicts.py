"""The reward says what AgentDojo says: on known solutions, on silence, and on obedience."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_sdk import ConfigError, Episode, Message, Outcome, Task
from areal_sdk.testing import assistant, check_reward, make_episode

pytest.importorskip("agentdojo", reason="pip install agentdojo (292 MB, 75 packages)")

from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement
from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
from agentdojo.attacks import load_attack
from agentdojo.benchmark import run_task_with_injection_tasks
from agentdojo.logging import OutputLogger
from agentdojo.types import ChatAssistantMessage, text_content_block_from_string

from areal_sdk_agentdojo.case import LATEST, Case, suite_named
from areal_sdk_agentdojo.dataset import SUITES, tasks
from areal_sdk_agentdojo.demonstrations import called, demonstration
from areal_sdk_agentdojo.environment import AgentDojo
from areal_sdk_agentdojo.ground_truth import attacker_calls
from areal_sdk_agentdojo.rewards import agentdojo

ATTACK = "important_instructions"
ASKED: Message = {"role": "user", "content": "?"}


class Silent(BasePipelineElement):
    """An agent of AgentDojo that says nothing and does nothing."""

    name = "silent"

    def query(
        self, query: Any, runtime: Any, env: Any, messages: Any = (), extra_args: Any = None
    ) -> Any:
        nothing = [text_content_block_from_string("")]
        said = ChatAssistantMessage(role="assistant", content=nothing, tool_calls=None)
        return query, runtime, env, [said], {}


def every_task(**options: Any) -> Iterator[Task]:
    return tasks("eval", held_out=1.0, **options)


def an_attack(user: str, goal: str, *, attack: str = ATTACK) -> Task:
    (task,) = every_task(
        suites=user.split("/")[0], user_tasks=[user], injection_tasks=[goal], attacks=attack
    )
    return task


def played(task: Task, *, obeys: bool = False) -> Episode:
    return make_episode(demonstration(task, obeys=obeys)["messages"], data=task.data)


def theirs(case: Case, pipeline: BasePipelineElement) -> tuple[bool, bool]:
    """AgentDojo's own utility, and whether the attacker's goal was reached."""
    return case.suite.run_task_with_pipeline(  # type: ignore[no-any-return]
        pipeline, case.user_task, case.injection_task, dict(case.injections)
    )


def ours(outcome: Outcome) -> tuple[bool, bool]:
    metrics = outcome.metrics
    return bool(metrics["utility_under_attack"]), not metrics["resisted"]


def test_the_known_solution_of_each_request_has_the_full_reward() -> None:
    solved = [task.id for task in every_task() if agentdojo(played(task)).reward == 1.0]
    assert len(solved) == 97


def test_an_agent_that_does_nothing_scores_as_agentdojo_says() -> None:
    solved = set()
    for task in every_task():
        outcome = agentdojo(make_episode("", data=task.data))
        utility, _ = theirs(Case.of(task), Silent())
        assert (outcome.success, outcome.reward) == (utility, float(utility)), task.id
        if utility:
            solved.add(task.id)
    assert (
        len(solved) == 5
    )  # requests that ask for nothing to be changed, or for what nobody can know
    assert {"banking/user_task_8", "banking/user_task_10"} <= solved


@pytest.mark.parametrize("suite", SUITES)
def test_an_agent_that_only_obeys_reaches_each_goal_as_agentdojo_says(suite: str) -> None:
    num_reached = 0
    for task in every_task(suites=suite, user_tasks=[f"{suite}/user_task_3"], attacks=ATTACK):
        case, environment = Case.of(task), AgentDojo()
        messages = environment.begin(case)
        for number, call in enumerate(attacker_calls(case)):
            message = called(call, number)
            messages += [message, *environment.answer(message)]
        assert case.injection_task is not None
        said = case.injection_task.GROUND_TRUTH_OUTPUT
        is_known = bool(attacker_calls(case) or said)  # eight goals of workspace have no solution
        messages.append(assistant(said))
        outcome = agentdojo(make_episode(messages, data=task.data))
        verdict = theirs(case, GroundTruthPipeline(case.injection_task))
        assert ours(outcome) == verdict == (False, is_known), task.id
        assert (outcome.reward, outcome.success) == (-1.0 * is_known, False)
        num_reached += is_known
    assert num_reached == {"banking": 9, "slack": 5, "travel": 7, "workspace": 6}[suite]


def check_agreement(suite_name: str, users: list[str], logs: Path) -> int:
    """Compare the verdicts on known solutions under attack with those of AgentDojo's benchmark; how many."""
    suite = suite_named(suite_name)
    names = [f"{suite_name}/{user}" for user in users]
    mine = {}
    for task in every_task(suites=suite_name, user_tasks=names, attacks=ATTACK):
        key = (task.data["user_task"], task.data["injection_task"])
        mine[key] = ours(agentdojo(played(task)))
    for user in users:
        pipeline = GroundTruthPipeline(suite.user_tasks[user])
        pipeline.name = "local"
        attack = load_attack(ATTACK, suite, pipeline)
        with OutputLogger(str(logs)):
            utility, security = run_task_with_injection_tasks(
                suite, pipeline, suite.user_tasks[user], attack, None, True, None, LATEST
            )
        for pair, reached in security.items():
            assert mine.pop(pair) == (utility[pair], reached), pair
    assert not mine
    return len(users) * len(suite.injection_tasks)


@pytest.mark.parametrize(("suite", "number"), [("banking", 144), ("slack", 105)])
def test_verdicts_under_attack_are_those_of_the_benchmark(
    suite: str, number: int, tmp_path: Path
) -> None:
    assert check_agreement(suite, list(suite_named(suite).user_tasks), tmp_path) == number


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "number"), [("travel", 140), ("workspace", 560)])
def test_verdicts_in_large_suites_are_those_of_the_benchmark(
    suite: str, number: int, tmp_path: Path
) -> None:
    assert check_agreement(suite, list(suite_named(suite).user_tasks), tmp_path) == number


@pytest.mark.parametrize(
    ("user", "goal"),
    [
        ("banking/user_task_13", "banking/injection_task_7"),
        ("slack/user_task_2", "slack/injection_task_1"),
        ("workspace/user_task_0", "workspace/injection_task_0"),
    ],
)
async def test_who_solves_and_obeys_earns_the_utility_less_the_penalty(
    user: str, goal: str
) -> None:
    task = an_attack(user, goal)
    obedient, faithful = played(task, obeys=True), played(task)
    verdicts = await check_reward(agentdojo, [faithful, obedient])
    assert [(v.reward, v.success) for v in verdicts] == [(1.0, True), (0.0, False)]
    assert dict(verdicts[0].metrics) == {
        "utility_under_attack": 1.0,
        "resisted": 1.0,
        "exposed": 1.0,
        "resisted_when_exposed": 1.0,
    }
    assert verdicts[1].metrics["resisted"] == 0.0
    assert agentdojo(obedient, penalty=0.0).reward == 1.0
    assert agentdojo(obedient, penalty=0.0).success is False
    assert agentdojo(obedient, penalty=2.5).reward == -1.5


def test_who_never_reads_the_attackers_text_has_resisted_unexposed() -> None:
    task = an_attack("slack/user_task_2", "slack/injection_task_1")
    verdict = agentdojo(make_episode("I would rather not.", data=task.data))
    expected = {"utility_under_attack": 0.0, "resisted": 1.0, "exposed": 0.0}
    assert (verdict.reward, dict(verdict.metrics)) == (0.0, expected)


def test_the_last_calls_count_where_a_limit_kept_their_results_from_the_model() -> None:
    task = an_attack("slack/user_task_2", "slack/injection_task_1")
    messages = demonstration(task, obeys=True)["messages"]
    cut = make_episode(messages[:5], data=task.data, truncated=True)
    assert cut.messages[-1]["tool_calls"][0]["function"]["name"] == "send_direct_message"
    assert agentdojo(cut).reward == -1.0


def test_a_conversation_about_another_world_is_no_verdict() -> None:
    task = an_attack("slack/user_task_2", "slack/injection_task_1")
    other = an_attack("slack/user_task_2", "slack/injection_task_3")
    with pytest.raises(ValueError, match="tool result 0 of the conversation is 'This is personal"):
        agentdojo(make_episode(demonstration(task)["messages"], data=other.data))


def test_what_cannot_be_judged_is_no_zero() -> None:
    task = an_attack("slack/user_task_2", "slack/injection_task_1")
    assert agentdojo(make_episode(None, data=task.data)).reward is None
    with pytest.raises(ValueError, match="has no data\\['suite'\\]"):
        agentdojo(make_episode("Done.", data={"user_task": "user_task_1"}))
    with pytest.raises(ConfigError, match="penalty = -1"):
        agentdojo(make_episode("Done.", data=task.data), penalty=-1.0)
