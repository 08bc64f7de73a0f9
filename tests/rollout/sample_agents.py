"""Agents for worker processes to load by file and name: well-behaved ones, and the others.

Who asks over HTTP imports `openai` when it plays: half of the CPU of a worker's start, and most agents need none.
"""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_sdk import Agent, Environment, EpisodeContext, Outcome, RolloutWorkflow, StepResult, Task
from areal_sdk.types import Episode, Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def client(context: EpisodeContext) -> "AsyncOpenAI":
    import openai

    return openai.AsyncOpenAI(
        base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
    )


async def ask(context: EpisodeContext, text: str = "2+2?") -> str:
    completion = await client(context).chat.completions.create(
        model=context.model, messages=[{"role": "user", "content": text}]
    )
    return completion.choices[0].message.content or ""


class Solver(Agent):
    """An agent over HTTP. `bonus` is an option."""

    def __init__(self, bonus: float = 0.0) -> None:
        self._bonus = bonus

    async def run(self, task: Task, context: EpisodeContext) -> float:
        return float(await ask(context, task.data["question"]) == task.data["answer"]) + self._bonus


solver = Solver(bonus=0.5)


async def function_agent(task: Task, context: EpisodeContext, *, worth: float = 1.0) -> float:
    return worth * (await ask(context) == "4")


def plain_agent(task: Task, context: EpisodeContext) -> float:
    import openai

    assert threading.current_thread() is not threading.main_thread()
    with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as sync_client:
        completion = sync_client.chat.completions.create(
            model=context.model, messages=[{"role": "user", "content": "2+2?"}]
        )
    assert len(context.turns) == 1
    return float(completion.choices[0].message.content == "4")


class BothDoors(RolloutWorkflow):
    """One turn over HTTP, one through the token door; keeps the second."""

    async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
        assert context.turns == ()
        await ask(context)
        assert len(context.turns) == 1
        turn = await context.generate([{"role": "user", "content": "second"}], max_new_tokens=8)
        assert context.turns[1] == turn
        return Episode("mine", task, context.turns[1:], Outcome.scored(0.5))


async def tells_its_context(task: Task, context: EpisodeContext) -> Outcome:
    await ask(context)
    told = f"{context.model} {context.split} {context.episode_id} {context.seed} {os.getpid()}"
    return Outcome(Outcome.scored(1.0).kind, reward=1.0, message=told)


class ArealRun:
    async def run(self, data: dict[str, Any], **extra: Any) -> dict[str, float]:
        import openai

        async with openai.AsyncOpenAI(
            base_url=extra["base_url"],
            api_key=extra["api_key"],
            http_client=extra["http_client"],
        ) as asking:
            completion = await asking.chat.completions.create(
                model="default", messages=[{"role": "user", "content": data["question"]}]
            )
        return {completion.id: 0.25}


class Echo(Environment):
    """Two steps; `worth` is an option."""

    def __init__(self, worth: float = 1.0) -> None:
        self._worth = worth
        self._num_steps = 0

    async def reset(self, task: Task) -> Sequence[Message]:
        return [{"role": "user", "content": task.data["question"]}]

    async def step(self, message: Message) -> StepResult:
        self._num_steps += 1
        done = self._num_steps == 2
        more = [] if done else [{"role": "user", "content": "again"}]
        return StepResult(more, reward=self._worth * (message["content"] == "4"), done=done)


class SlowStep(Echo):
    async def step(self, message: Message) -> StepResult:
        await asyncio.sleep(60)
        return StepResult(done=True)


async def _raises_half_a_character(task: Task, context: EpisodeContext) -> float:
    raise ValueError("half \ud800")


async def _raises(task: Task, context: EpisodeContext) -> float:
    raise KeyError("no such tool")


async def _exits(task: Task, context: EpisodeContext) -> float:
    raise SystemExit(3)


async def _exits_in_a_task(task: Task, context: EpisodeContext) -> float:
    async def leave() -> None:
        raise SystemExit(3)

    await asyncio.create_task(leave())
    return 1.0


async def _returns_more(task: Task, context: EpisodeContext) -> Any:
    return 1.0, "good"


async def _returns_text(task: Task, context: EpisodeContext) -> Any:
    return "1.0"


async def _gives_up_waiting(task: Task, context: EpisodeContext) -> float:
    try:
        async with asyncio.timeout(0.3):
            await context.generate([{"role": "user", "content": "2+2?"}])
    except TimeoutError:
        return 0.25
    return 1.0


async def does_as_told(task: Task, context: EpisodeContext) -> float:
    """`task.data["do"]` says what."""
    return await DEEDS[task.data.get("do", "answer")](task, context)


async def _answer(task: Task, context: EpisodeContext) -> float:
    turn = await context.generate([{"role": "user", "content": "2+2?"}])
    return float(turn.message["content"] == "4")


async def _crash(task: Task, context: EpisodeContext) -> float:
    await _answer(task, context)
    os._exit(7)


async def _segfault(task: Task, context: EpisodeContext) -> float:
    await asyncio.create_task(_fault())
    return 1.0


async def _fault() -> None:
    ctypes.string_at(0)


async def _crash_in_a_thread(task: Task, context: EpisodeContext) -> float:
    await asyncio.to_thread(_exit_later)
    return 1.0


def _exit_later() -> None:
    time.sleep(0.3)  # by then the event loop has nothing to do
    os._exit(7)


def _say_here(task: Task, suffix: str = "") -> None:
    Path(task.data["here"]).with_suffix(suffix).touch()


def _is_time(task: Task) -> bool:
    return Path(task.data["when"]).exists()


async def _told(task: Task) -> None:
    while not _is_time(task):  # noqa: ASYNC110 - the one who tells is in another process
        await asyncio.sleep(0.01)


async def _wait(task: Task, context: EpisodeContext) -> float:
    _say_here(task)
    await asyncio.sleep(600)
    return 1.0


async def _block(task: Task, context: EpisodeContext) -> float:
    await _told(task)
    time.sleep(600)  # noqa: ASYNC251 - the point
    return 1.0


async def _crash_when(task: Task, context: EpisodeContext) -> float:
    await _told(task)
    os._exit(7)


async def _ignore(task: Task, context: EpisodeContext) -> float:
    _say_here(task)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


async def _clean_up(task: Task, context: EpisodeContext) -> float:
    _say_here(task)
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.01)
        _say_here(task, ".cleaned")
    return 1.0


async def _generate_for_ever(task: Task, context: EpisodeContext) -> float:
    _say_here(task)
    await context.generate([{"role": "user", "content": "2+2?"}])
    return 1.0


@dataclass(frozen=True)
class Question:
    """A class of the user's own in a task's data."""

    text: str


async def _reads_a_class(task: Task, context: EpisodeContext) -> float:
    assert isinstance(task.data["question"], Question)
    return float(await ask(context, task.data["question"].text) == "4")


DEEDS = {
    "answer": _answer,
    "raise": _raises,
    "raise_half_a_character": _raises_half_a_character,
    "exit": _exits,
    "exit_in_a_task": _exits_in_a_task,
    "return_text": _returns_text,
    "return_more": _returns_more,
    "give_up_waiting": _gives_up_waiting,
    "read_a_class": _reads_a_class,
    "crash": _crash,
    "crash_when": _crash_when,
    "segfault": _segfault,
    "crash_in_a_thread": _crash_in_a_thread,
    "wait": _wait,
    "block": _block,
    "ignore": _ignore,
    "clean_up": _clean_up,
    "generate_for_ever": _generate_for_ever,
}


class Burst(Agent):
    """Scores in which round of the event loop it began. The first episode holds the loop until the
    orders of the others have arrived."""

    round = 0
    num_began = 0

    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        cls = type(self)
        cls.num_began += 1
        if cls.num_began == 1:
            self._hold(Path(task.data["holding"]), Path(task.data["go"]))
            assert not context.turns  # its answer comes after the orders, on the same connection
            self._count(task.data["episodes"])
        return Outcome.scored(1.0, metrics={"round": float(cls.round)})

    def _hold(self, holding: Path, go: Path) -> None:
        holding.touch()
        while not go.exists():
            time.sleep(0.001)

    def _count(self, num_episodes: int) -> None:
        type(self).round += 1
        if self.num_began < num_episodes:
            asyncio.get_running_loop().call_soon(self._count, num_episodes)
