"""A scripted run of long episodes, which wait in their midst while a file `hold` is beside the run directory.

The engine answers something else each time, and appends what it sampled to a file `sampled` beside the run: in which
life of the run, for which episode, the length of the prompt, and the tokens. After a resume, tasks that have `differs` get another word from their
tool.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import areal_sdk
from areal_sdk import Agent, EpisodeContext, GenerateChunk, GenerateRequest, Task
from areal_sdk.engine import EngineClient, EngineEntrance, Tell
from areal_sdk.testing import Reply
from tests.loop.scripted import NUM_TOKENS, Babbler

BESIDE = Path(os.environ.get("LONG_AGENT", "."))
LIFE = os.environ.get("LONG_AGENT_LIFE", "first")
HELD_AT, NUM_TURNS = 6, 9
"""Turns before an episode waits, and all of its turns."""
NUM_TASKS = 64


class Long(Agent):
    """Reward: the share of letters before `n`."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": f"task {task.data['number']}"}]
        letters = ""
        for number in range(NUM_TURNS):
            if number == HELD_AT:
                await _released()
            turn = await context.generate(messages, max_new_tokens=16)
            letters += turn.text
            word = "another" if task.data["number"] in _differing() and number == 2 else "more"
            messages += [turn.message, {"role": "user", "content": f"{word} {number}"}]
        return sum(letter < "n" for letter in letters) / len(letters)


async def _released() -> None:
    while (BESIDE / "hold").exists():  # noqa: ASYNC110 - a file of another process sets no event
        await asyncio.sleep(0.01)


def _differing() -> list[int]:
    numbers: list[int] = json.loads(os.environ.get("LONG_AGENT_DIFFERS", "[]"))
    return numbers


def tasks(split: str) -> Iterator[Task]:
    for number in range(NUM_TASKS):
        yield Task(f"{split}-{number}", {"number": number})


class Witness(Babbler):
    @classmethod
    def on(cls, model_dir: Path, *, max_context: int) -> "Witness":
        draw = random.SystemRandom()
        letters = "abcdefghijklmnopqrstuvwxyz"

        def say(request: GenerateRequest) -> Reply:
            return Reply([ord(draw.choice(letters)) for _ in range(NUM_TOKENS)])

        return cls(say, model_dir=model_dir, max_context=max_context, tokens_per_chunk=8)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        tokens: list[int] = []
        async for chunk in super().stream(request):
            tokens += chunk.tokens
            if chunk.finish_reason is not None:
                said = [LIFE, request.session, len(request.tokens), tokens]
                with (BESIDE / "sampled").open("a") as file:
                    file.write(json.dumps(said) + "\n")
            yield chunk

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        return EngineEntrance(f"{__file__}::WitnessOfNode", {})


class WitnessOfNode(EngineClient):
    version = 0

    async def told(self, state: Mapping[str, Any]) -> None:
        self._witness = Witness.on(Path(self.info.model), max_context=self.info.max_context)

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._witness.stream(request)

    async def aclose(self) -> None:
        pass


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("witness", Witness)
