"""The reward `judge`. It is `async def`: one process judges many episodes at once."""

import asyncio
import json
from typing import Any
from weakref import WeakKeyDictionary

from areal_sdk import Episode, Outcome
from areal_sdk_judge.judge import Judge, Judgement, JudgeOptions
from areal_sdk_judge.prompts import RUBRIC

_judges: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[JudgeOptions, Judge]]" = (
    WeakKeyDictionary()
)


async def judge(
    episode: Episode,
    *,
    base_url: str,
    model: str,
    rubric: str = RUBRIC,
    low: float = 0.0,
    high: float = 10.0,
    reference: str = "",
    success_at: float = 1.0,
    whole_conversation: bool = False,
    temperature: float = 0.0,
    max_tokens: int = 512,
    attempts: int = 2,
    max_retries: int = 4,
    timeout_s: float = 20.0,
    max_concurrency: int = 16,
    cache: str = "",
    prompt_price: float = 0.0,
    completion_price: float = 0.0,
) -> Outcome:
    """A judge's score of the final answer, from 0 to 1; abstains where the judge gave none.

    With `reference`, a field of `task.data`, the answer is compared with the answer there: 1 if it is
    better, 0.5 if it is as good.
    """
    asked = judge_of(
        JudgeOptions(
            base_url=base_url,
            model=model,
            rubric=rubric,
            low=low,
            high=high,
            temperature=temperature,
            max_tokens=max_tokens,
            attempts=attempts,
            max_retries=max_retries,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            cache=cache,
            prompt_price=prompt_price,
            completion_price=completion_price,
        )
    )
    question = question_of(episode)
    answer = conversation_of(episode) if whole_conversation else episode.final_text
    if not reference:
        return _outcome(await asked.score(question, answer), success_at)
    if reference not in episode.task.data:
        raise ValueError(
            f"task {episode.task.id!r} has no {reference!r} to compare with: name the field of the "
            "reference answer in reward.judge.reference"
        )
    other = str(episode.task.data[reference])
    return _outcome(await asked.compare(question, answer, other), success_at)


def question_of(episode: Episode) -> str:
    """The question: the task's own, or the first message of a user."""
    if "question" in episode.task.data:
        return str(episode.task.data["question"])
    for message in episode.messages:
        if message.get("role") == "user":
            return str(message.get("content") or "")
    return ""


def conversation_of(episode: Episode) -> str:
    """The final branch, tool calls and their results included: a line of JSON a message.

    So no text of a message can look like a message of somebody else.
    """
    lines = []
    for message in episode.messages:
        shown: dict[str, Any] = {"role": message.get("role"), "content": message.get("content")}
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [call["function"] for call in calls]
        lines.append(json.dumps(shown, ensure_ascii=False))
    return "\n".join(lines)


def judge_of(options: JudgeOptions) -> Judge:
    """The judge of this event loop: its connections and its limit are shared by all episodes."""
    judges = _judges.setdefault(asyncio.get_running_loop(), {})
    if options not in judges:
        judges[options] = Judge(options)
    return judges[options]


async def close_judges() -> None:
    """Close the connections of this event loop's judges."""
    for judge in _judges.pop(asyncio.get_running_loop(), {}).values():
        await judge.aclose()


def _outcome(judgement: Judgement, success_at: float) -> Outcome:
    if judgement.value is None and judgement.finish_reason != "stop":
        return Outcome.abstained(
            f"the judge's reply ended with finish_reason = {judgement.finish_reason!r} and not 'stop', "
            "so it is no verdict; if it was cut, raise reward.judge.max_tokens: "
            f"{judgement.said[-200:]!r}"
        )
    if judgement.value is None:
        return Outcome.abstained(
            f"no verdict can be read in the judge's reply: {judgement.said[-200:]!r}"
        )
    return Outcome.scored(
        judgement.value, success=judgement.value >= success_at, metrics=judgement.metrics
    )
