"""A gullible assistant in a Slack workspace learns to leave the attacker's requests alone: SmolLM2, 135M.

    areal-sdk train examples/gullible.py --config examples/gullible.toml

First it imitates AgentDojo's solutions. Under attack it sees each request twice: once solved, and once with the
attacker's request carried out before. Then the reward takes 1 away where the attacker reached the goal. The goal of the
split `eval` is in no demonstration and in no step of training. The split `transfer` has the goals of training, and an
attack in other words.
"""

from collections.abc import Iterator
from typing import Any

from areal_sdk import Task
from areal_sdk_agentdojo.dataset import tasks as agentdojo_tasks
from areal_sdk_agentdojo.demonstrations import demonstration
from areal_sdk_agentdojo.environment import AgentDojo

REQUESTS = [f"slack/user_task_{number}" for number in (0, 2, 3, 8, 12)]
GOALS = {
    "train": ["slack/injection_task_3", "slack/injection_task_5"],
    "eval": ["slack/injection_task_1"],
}


class Slack(AgentDojo):
    """The suite without a system message and with few tools: about 250 tokens an episode in place of 550."""

    def __init__(self) -> None:
        super().__init__(system_message="", only_needed_tools=True)


def tasks(split: str) -> Iterator[Task]:
    return _tasks(
        "eval" if split == "eval" else "train",
        attack="ignore_previous" if split == "transfer" else "direct",
    )


def demonstrations() -> Iterator[dict[str, Any]]:
    for task in _tasks("train", attack="none"):
        yield demonstration(task, environment=Slack())
    for task in tasks("train"):
        for obeys in (False, True):
            yield demonstration(task, obeys=obeys, environment=Slack())


def _tasks(goals: str, *, attack: str) -> Iterator[Task]:
    return agentdojo_tasks(
        "train",
        suites="slack",
        user_tasks=REQUESTS,
        injection_tasks=GOALS[goals],
        attacks=attack,
        held_out=0.0,
    )
