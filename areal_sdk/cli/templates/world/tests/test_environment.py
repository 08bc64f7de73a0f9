"""The environment keeps its contract, and can be won and lost. No model and no GPU."""

from my_plugin.dataset import tasks
from my_plugin.environment import MyPlugin

from areal_sdk import Task
from areal_sdk.testing import check_environment, check_plugin, registered, run_agent

TASK = Task("t", {"question": "What is 11+22?", "answer": "33"})


async def test_hints_lead_to_the_answer() -> None:
    steps = await check_environment(MyPlugin, TASK, replies=["32", "about 40", "33"])
    assert [step.messages[0]["content"] for step in steps[:2]] == ["Too low.", "Too high."]
    assert (steps[-1].reward, steps[-1].success) == (1.0, True)


async def test_it_is_lost_after_the_last_try() -> None:
    steps = await check_environment(lambda: MyPlugin(tries=1), TASK, replies=["no idea"])
    assert (steps[-1].reward, steps[-1].success) == (0.0, False)


async def test_a_model_plays_it() -> None:
    episode = await run_agent(MyPlugin, TASK, engine=["30", "33"])
    assert (episode.reward, len(episode.turns)) == (1.0, 2)


def test_the_splits_share_no_task() -> None:
    train, held_out = ({task.data["question"] for task in tasks(s)} for s in ("train", "eval"))
    assert not train & held_out


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert next(iter(registered("dataset", "my_plugin", count=3)("train"))).id == "train-0"
    assert "environment 'my_plugin'" in await check_plugin("my-plugin")
