"""`Judge`: asks a model for scores and preferences, and reports their cost."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import openai

from areal_sdk import EpisodeError
from areal_sdk_judge.cache import Reply, ReplyCache
from areal_sdk_judge.prompts import (
    RUBRIC,
    compare_prompt,
    reaction_prompt,
    read_preference,
    read_reaction,
    read_score,
    score_prompt,
)

API_KEY = "JUDGE_API_KEY"
"""The variable with the endpoint's key: no file holds it."""

_PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
"""Errors that another attempt, or another machine, may mend. `APITimeoutError` is a connection error."""


@dataclass(frozen=True)
class JudgeOptions:
    """The endpoint of a judge, its rubric, and its limits."""

    base_url: str
    model: str
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    temperature: float = 0.0
    max_tokens: int = 512
    attempts: int = 2
    """Number of times that a model is asked until it gives a readable verdict."""
    max_retries: int = 4
    timeout_s: float = 20.0
    """Seconds of one request."""
    max_concurrency: int = 16
    cache: str = ""
    prompt_price: float = 0.0
    """Price of a million tokens, as in the endpoint's list."""
    completion_price: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict between 0 and 1, or None where the judge gave none that can be read."""

    value: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    said: str = ""
    """The last reply."""
    finish_reason: str | None = "stop"
    """The reason why the reply ended. A reply that did not stop by itself is no verdict: a judge
    that is cut off has only quoted."""


class Judge:
    """One judge. It belongs to one event loop; many judgements may be under way."""

    def __init__(self, options: JudgeOptions) -> None:
        self.options = options
        self._cache = ReplyCache(Path(options.cache)) if options.cache else None
        self._turns = asyncio.Semaphore(options.max_concurrency)
        self._client = openai.AsyncOpenAI(
            base_url=options.base_url,
            api_key=os.environ.get(API_KEY, "none"),  # servers of one's own want none
            max_retries=options.max_retries,
            timeout=options.timeout_s,
        )

    async def score(self, question: str, answer: str) -> Judgement:
        """Judge how well the answer meets the rubric."""
        low, high = self.options.low, self.options.high
        prompt = score_prompt(
            rubric=self.options.rubric, question=question, answer=answer, low=low, high=high
        )
        return await self._judge(prompt, lambda reply: read_score(reply, low=low, high=high))

    async def reaction(self, question: str, answer: str, next_message: str) -> Judgement:
        """1.0 if the user's next message shows that the answer helped, 0.0 if it shows that it did not, 0.5 if neither."""
        prompt = reaction_prompt(question=question, answer=answer, next_message=next_message)
        return await self._judge(prompt, read_reaction)

    async def compare(self, question: str, first: str, second: str) -> Judgement:
        """1.0 where the first answer is better, 0.0 where the second is, 0.5 where neither is.

        Judges prefer the first or the second place. So both orders are asked, and contradicting answers count as 0.5.
        """
        rubric = self.options.rubric
        orders = [(first, second), (second, first)]
        prompts = [
            compare_prompt(rubric=rubric, question=question, first=a, second=b) for a, b in orders
        ]
        there, back = await asyncio.gather(
            *(self._judge(prompt, read_preference) for prompt in prompts)
        )
        metrics = {
            name: there.metrics.get(name, 0.0) + back.metrics.get(name, 0.0)
            for name in there.metrics.keys() | back.metrics.keys()
        }
        if there.value is None or back.value is None:
            unread = there if there.value is None else back
            return Judgement(None, metrics, unread.said, unread.finish_reason)
        return Judgement((there.value + 1.0 - back.value) / 2, metrics, there.said)

    async def aclose(self) -> None:
        await self._client.close()

    async def _judge(self, prompt: str, read: Callable[[str], float | None]) -> Judgement:
        """Ask until a verdict can be read. A cached reply that cannot be read is asked for again."""
        replies: list[Reply] = []
        value = None
        for attempt in range(self.options.attempts):
            reply = await self._ask(prompt, attempt)
            replies.append(reply)
            value = read(reply.text) if reply.finish_reason == "stop" else None
            if value is not None:
                break
        last = replies[-1]
        return Judgement(value, self._metrics(replies), last.text, last.finish_reason)

    async def _ask(self, prompt: str, attempt: int) -> Reply:
        request = {
            "model": self.options.model,
            # Models write halves of characters, which no request can carry.
            "messages": [{"role": "user", "content": prompt.encode(errors="replace").decode()}],
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
        }
        key = _key_of({**request, "base_url": self.options.base_url, "attempt": attempt})
        if self._cache is not None and (known := self._cache.get(key)) is not None:
            return known
        async with self._turns:
            reply = await self._request(request)
        if self._cache is not None and reply.finish_reason == "stop":
            self._cache.put(key, reply)
        return reply

    async def _request(self, request: dict[str, Any]) -> Reply:
        try:
            completion = await self._client.chat.completions.create(**request)
        except _PASSING as exc:
            raise EpisodeError.infrastructure(
                f"the judge at {self.options.base_url} gives no verdict, after "
                f"{self.options.max_retries} retries: {exc}"
            ) from exc
        if not completion.choices:
            raise EpisodeError.infrastructure(
                f"the judge at {self.options.base_url} answered without a choice"
            )
        usage, choice = completion.usage, completion.choices[0]
        return Reply(
            choice.message.content or "",
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
            getattr(choice, "finish_reason", None),  # some servers leave it out
        )

    def _metrics(self, replies: list[Reply]) -> dict[str, float]:
        paid = [reply for reply in replies if not reply.is_cached]
        prompt_tokens = sum(reply.prompt_tokens for reply in paid)
        completion_tokens = sum(reply.completion_tokens for reply in paid)
        cost = (
            prompt_tokens * self.options.prompt_price
            + completion_tokens * self.options.completion_price
        ) / 1e6
        return {
            "judge/calls": float(len(paid)),
            "judge/cached": float(len(replies) - len(paid)),
            "judge/prompt_tokens": float(prompt_tokens),
            "judge/completion_tokens": float(completion_tokens),
            "judge/cost": cost,
        }


def _key_of(request: Mapping[str, Any]) -> str:
    text = json.dumps(request, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
