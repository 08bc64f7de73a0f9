"""No model and no GPU: the agent plays against scripted replies, through the real gateway."""

import asyncio

from my_agent import MyAgent, tasks

from areal_sdk.testing import check_workflow, run_agent, tool_call

TASK = {"question": "What is 11+22?", "answer": "33"}


def test_the_right_answer_after_a_call_is_rewarded() -> None:
    replies = [tool_call("calculator", expression="11+22"), "33"]
    episode = asyncio.run(run_agent(MyAgent, TASK, engine=replies))
    assert episode.reward == 1.0
    assert len(episode.turns) == 2


def test_a_wrong_answer_is_not() -> None:
    episode = asyncio.run(run_agent(MyAgent, TASK, engine=["32"]))
    assert episode.reward == 0.0


def test_the_agent_survives_what_an_untrained_model_says() -> None:
    replies = [tool_call("calculator", expression="11+22"), "33"]
    asyncio.run(check_workflow(MyAgent, TASK, replies=replies, tools=["calculator"]))


def test_train_and_eval_share_no_task() -> None:
    train, held_out = ({task.data["question"] for task in tasks(s)} for s in ("train", "eval"))
    assert not train & held_out
