"""The easiest part of BFCL's multi-turn category: the first request of an entry, which one call fulfils. SmolLM2, 135M.

    areal-sdk train examples/first_request.py --config examples/first_request.toml

First it imitates the known calls of the training tasks, then BFCL's own verdict is the reward.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from areal_sdk import Message, Task
from areal_sdk.types import Tool
from areal_sdk_bfcl.dataset import tasks as bfcl_tasks
from areal_sdk_bfcl.demonstrations import demonstration
from areal_sdk_bfcl.environment import Bfcl


class FirstRequest(Bfcl):
    """Only the needed function is offered, without the words about its API that each description begins with: an API's 18
    functions or more are too much to read for this model."""

    def __init__(self) -> None:
        super().__init__(only_needed_tools=True)

    def begin(self, task: Task) -> list[Message]:
        opening = super().begin(task)
        self.tools = [_shortened(tool) for tool in self.tools]
        return opening


def _shortened(tool: Tool) -> Tool:
    function = tool["function"]
    about = function["description"].rpartition("Tool description: ")[2]
    return {**tool, "function": {**function, "description": about}}


def tasks(split: str) -> Iterator[Task]:
    return bfcl_tasks(split, turns=1, calls=1)


def demonstrations() -> Iterator[dict[str, Any]]:
    for task in tasks("train"):
        yield asyncio.run(demonstration(task, environment=FirstRequest()))
