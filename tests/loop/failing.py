"""An agent that fails after a few steps, in the way that `AREAL_TEST_FAILURE` names. As a plugin it brings a reward that
fails too."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator

import areal_sdk
from areal_sdk import Agent, Episode, EpisodeContext, Task

WAY = os.environ.get("AREAL_TEST_FAILURE", "")
NUM_SOUND = 24
_played = _judged = 0


class Failing(Agent):
    """Reward: the share of the sampled tokens that are bytes below 128."""

    async def run(self, task: Task, context: EpisodeContext) -> float | None:
        global _played
        _played += 1
        is_sound = _played <= NUM_SOUND
        turn = await context.generate([{"role": "user", "content": "abc"}], max_new_tokens=8)
        if not is_sound and WAY == "raises":
            raise KeyError("answer")
        if not is_sound and WAY == "hangs":
            await asyncio.Event().wait()
        if not is_sound and WAY == "blocks":
            time.sleep(3600)  # noqa: ASYNC251 - that is the failure
        return None if WAY == "reward" else _share(turn.output_tokens)


def tasks(split: str) -> Iterator[Task]:
    for index in range(64):
        yield Task(f"{split}-{index}", {})


def fails(episode: Episode) -> float:
    global _judged
    _judged += 1
    if _judged > NUM_SOUND:
        raise RuntimeError("no sandbox is free")
    return _share(episode.turns[0].output_tokens)


def _share(tokens: tuple[int, ...]) -> float:
    return sum(token < 128 for token in tokens) / max(1, len(tokens))


@areal_sdk.hookimpl
def register_rewards(register: Callable[[str, object], None]) -> None:
    register("fails", fails)
