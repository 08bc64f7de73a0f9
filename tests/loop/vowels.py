"""An agent whose reward a random model already varies in: it can be trained from the first step.

Two turns an episode, through the token door; as a plugin it keeps every version of the weights
where `AREAL_TEST_WEIGHTS` says, so that a test can re-score what was sampled.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import areal_sdk
from areal_sdk import Agent, EpisodeContext, Task, WeightUpdate


class Vowels(Agent):
    """Reward: the share of the sampled tokens that are bytes below 128."""

    def __init__(self, more_tokens: int = 0) -> None:
        self._more_tokens = more_tokens
        """A turn, over what its task asks for: answers long enough for weights to change in them."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": task.data["prompt"]}]
        sampled: list[int] = []
        for _ in range(2):
            length = task.data["length"] + self._more_tokens
            turn = await context.generate(messages, max_new_tokens=length)
            messages += [turn.message, {"role": "user", "content": "more"}]
            sampled += turn.output_tokens
        return sum(token < 128 for token in sampled) / max(1, len(sampled))


def tasks(split: str) -> Iterator[Task]:
    for index in range(64):
        data = {"prompt": "abcdefgh"[index % 8], "length": 8 + index % 24, "split": split}
        yield Task(f"{split}-{index}", data)


@areal_sdk.hookimpl
def on_weights(update: WeightUpdate) -> None:
    keep = os.environ.get("AREAL_TEST_WEIGHTS")
    if keep and update.path is not None:
        shutil.copy(update.path, Path(keep) / f"v{update.version}.safetensors")
