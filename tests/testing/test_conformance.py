"""Each check passes on what keeps its contract, and names what does not."""

import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from areal_sdk import (
    Agent,
    Environment,
    EpisodeContext,
    GenerateChunk,
    GenerateRequest,
    StepResult,
    Task,
    WeightUpdate,
)
from areal_sdk.builtin.rewards import numeric_match
from areal_sdk.reward import Verdict
from areal_sdk.testing import (
    ConformanceError,
    ScriptedEngine,
    assistant,
    check_engine,
    check_environment,
    check_reward,
    check_workflow,
    make_episode,
    tool_call,
)
from areal_sdk.types import Episode, Message

TASK = Task("t", {"target": "x", "answer": 4})

GUESS: dict[str, Any] = {
    "type": "function",
    "function": {"name": "guess", "parameters": {"type": "object", "properties": {}}},
}


class Guess(Environment):
    """A tool to call with the right argument, answered for every call."""

    tools = (GUESS,)

    async def reset(self, task: Task) -> list[Message]:
        self.target = task.data["target"]
        return [{"role": "user", "content": "guess a letter"}]

    async def step(self, message: Message) -> StepResult:
        calls = message.get("tool_calls") or []
        if not calls:
            return StepResult([{"role": "user", "content": "call guess"}], reward=0.0)
        won = f'"{self.target}"' in calls[0]["function"]["arguments"]
        answers = [{"role": "tool", "tool_call_id": c["id"], "content": "no"} for c in calls]
        return StepResult(answers, reward=float(won), done=won, success=won)


async def test_a_good_environment_passes_and_its_steps_come_back() -> None:
    replies: list[Message | str] = ["hm", assistant(None, ("guess", {"letter": "x"}))]
    steps = await check_environment(Guess, TASK, replies=replies)
    assert [(step.reward, step.done) for step in steps] == [(0.0, False), (1.0, True)]


class ParsesCarelessly(Guess):
    async def step(self, message: Message) -> StepResult:
        _ = message["tool_calls"][0]
        return await super().step(message)


class RandomStart(Guess):
    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": str(next(_counter))}]


class Silent(Guess):
    async def step(self, message: Message) -> StepResult:
        return StepResult()


class ForgetsCalls(Guess):
    async def step(self, message: Message) -> StepResult:
        return StepResult([{"role": "user", "content": "again"}])


class NotANumber(Guess):
    async def step(self, message: Message) -> StepResult:
        return replace(await super().step(message), reward=float("nan"))


class BadTool(Guess):
    tools = ({"type": "function", "function": {"name": "two words"}},)


class CannotCloseEarly(Guess):
    async def close(self) -> None:
        del self.target


class Edits(Guess):
    async def step(self, message: Message) -> StepResult:
        message["content"] = "edited"
        return await super().step(message)


_counter = itertools.count()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (
            ParsesCarelessly,
            r"step\(.*\) raised KeyError: 'tool_calls'; what the model says is data",
        ),
        (RandomStart, r"reset\(\) differs between two environments of one task"),
        (Silent, r"is not done and returned no messages"),
        (ForgetsCalls, r"calls without an answer: \['call_0'\]"),
        (NotANumber, r"reward nan is neither a finite number nor None"),
        (BadTool, r"'two words' is not a tool name"),
        (CannotCloseEarly, r"close\(\) without reset\(\) raised AttributeError"),
        (Edits, r"changed the message"),
    ],
)
async def test_a_broken_environment_is_told_what_is_wrong(
    broken: type[Environment], complaint: str
) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await check_environment(broken, TASK)


async def test_a_good_reward_passes_and_its_verdicts_come_back() -> None:
    episodes = [make_episode("it is 4", data=TASK.data), make_episode("5", data=TASK.data)]
    verdicts = await check_reward(numeric_match, episodes, options={"tolerance": 0.1})
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0]


def indexes_the_last_turn(episode: Episode) -> Verdict:
    return float(episode.turns[-1].text == "4")


def raises_on_garbage(episode: Episode) -> Verdict:
    return float(episode.final_text or 0) if episode.turns else 0.0


def is_random(episode: Episode) -> Verdict:
    return random.random()


def returns_text(episode: Episode) -> Verdict:
    return "good"  # type: ignore[return-value]


def needs_a_judge(episode: Episode, *, judge: str) -> Verdict:
    return 1.0


class IsAClass:
    def __init__(self, episode: Episode) -> None: ...


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (indexes_the_last_turn, "on an episode without turns raised IndexError"),
        (raises_on_garbage, "raised ValueError: could not convert string to float"),
        (is_random, "gave one episode two verdicts"),
        (returns_text, "a reward returns a number"),
        (needs_a_judge, r"\[reward.needs_a_judge\] needs judge"),
        (IsAClass, "is a class; a reward is a function"),
        (lambda episode: 1.0, "cannot be loaded by the processes that run rewards"),
    ],
)
async def test_a_broken_reward_is_told_what_is_wrong(
    broken: Callable[..., Verdict], complaint: str
) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await check_reward(broken, [make_episode("4")])


async def test_the_scripted_engine_keeps_the_engine_contract() -> None:
    await check_engine(ScriptedEngine("abcdef"), is_model=False)


class LabelsAfterwards(ScriptedEngine):
    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        async for chunk in super().stream(request):
            yield replace(chunk, versions=(0,) * len(chunk.tokens))


class CutsPrompts(ScriptedEngine):
    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        async for chunk in super().stream(replace(request, tokens=request.tokens[:100])):
            yield chunk


class ForgetsStopTokens(ScriptedEngine):
    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        async for chunk in super().stream(replace(request, stop_tokens=())):
            yield chunk


class DrainsBeforeUpdating(ScriptedEngine):
    async def update_weights(self, update: WeightUpdate) -> None:
        if self.num_active:
            await self.never.wait()
        await super().update_weights(update)

    async def start(self) -> None:
        import asyncio

        self.never = asyncio.Event()


class DoesNotPause(ScriptedEngine):
    async def pause(self) -> None:
        """Nothing."""


class TemperatureOne(ScriptedEngine):
    """Two candidates, logprobs that ignore the temperature."""

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        first = bool((request.seed or 0) % 2) and request.sampling.temperature > 0
        async for chunk in super().stream(request):
            if request.max_new_tokens == 1:
                yield replace(chunk, tokens=(int(first),), logprobs=((-2.0, -1.0)[not first],))
            else:
                yield chunk


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (LabelsAfterwards, "ended under version 0, not the new 1"),
        (CutsPrompts, "must raise ContextOverflowError, not be cut"),
        (ForgetsStopTokens, r"stop_tokens = .* should give"),
        (DrainsBeforeUpdating, r"it must not wait for it\) took longer than"),
        (DoesNotPause, r"pause\(\) must hold all generation"),
        (TemperatureOne, r"temperature 0.5 are not log softmax\(logits / T\)"),
    ],
)
async def test_a_broken_engine_is_told_what_is_wrong(
    broken: type[ScriptedEngine], complaint: str
) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await check_engine(broken("abcdef"), is_model=broken is TemperatureOne, timeout_s=0.5)


class Guesser(Agent):
    """Two turns: a call, then the answer to its result."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages: list[Message] = [{"role": "user", "content": "guess"}]
        turn = await context.generate(messages, tools=[GUESS])
        calls = turn.message.get("tool_calls") or []
        answers = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in calls]
        messages += [turn.message, *(answers or [{"role": "user", "content": "call it"}])]
        return float((await context.generate(messages, tools=[GUESS])).text == "done")


class KeepsState(Guesser):
    def __init__(self) -> None:
        self.score = 0.0

    async def run(self, task: Task, context: EpisodeContext) -> float:
        self.score += await super().run(task, context)
        return self.score


class RaisesWithoutACall(Guesser):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        turn = await context.generate([{"role": "user", "content": "guess"}], tools=[GUESS])
        _ = turn.message["tool_calls"][0]
        return await super().run(task, context)


REPLIES = [tool_call("guess", letter="x"), "done"]


async def test_a_good_workflow_passes_and_its_episode_comes_back() -> None:
    episode = await check_workflow(Guesser, TASK, replies=REPLIES, tools=["guess"])
    assert episode.reward == 1.0


async def test_a_workflow_that_raises_on_nonsense_is_told_so() -> None:
    replies = [REPLIES[0], *REPLIES]
    with pytest.raises(ConformanceError, match="low reward instead of raising"):
        await check_workflow(RaisesWithoutACall, TASK, replies=replies, tools=["guess"])


async def test_a_workflow_that_keeps_state_is_told_so() -> None:
    with pytest.raises(ConformanceError, match="keep no state on the agent"):
        await check_workflow(KeepsState(), TASK, replies=REPLIES, tools=["guess"])
