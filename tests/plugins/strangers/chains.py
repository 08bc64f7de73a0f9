"""A stranger's form of agents, in one file that imports contracts alone: a chain of functions over a text."""

from typing import Any

import areal_sdk
from areal_sdk import EpisodeContext, Task
from areal_sdk.agent import AgentForm


async def ask(chain: Any, task: Task, context: EpisodeContext) -> float:
    turn = await context.generate([{"role": "user", "content": task.data["question"]}])
    text = turn.text
    for link in chain.links:
        text = link(text)
    return float(text == task.data["answer"])


CHAIN = AgentForm(lambda cls: hasattr(cls, "links"), ask, takes_tokens=True)


@areal_sdk.hookimpl
def register_agent_forms(register: Any) -> None:
    register("chain", CHAIN)
