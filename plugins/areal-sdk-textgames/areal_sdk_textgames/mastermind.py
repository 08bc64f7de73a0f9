"""Mastermind: find the code from how well each guess fits."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from areal_sdk import Environment, Message, StepResult, Task

GUESS: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}

EVAL_SHARE = 5
"""Number of codes of which one is held out."""


class Mastermind(Environment):
    """One game. The task's data: `code`, such as "abca", and `symbols`, such as "abcd"."""

    tools = (GUESS,)

    def __init__(self, *, max_guesses: int = 8, partial_credit: float = 0.2) -> None:
        self._max_guesses = max_guesses
        self._partial_credit = partial_credit
        self._num_guesses = 0
        self._best = 0.0

    async def reset(self, task: Task) -> Sequence[Message]:
        self._code, self._symbols = str(task.data["code"]), str(task.data["symbols"])
        text = (
            f"Find the code: {len(self._code)} symbols out of {', '.join(self._symbols)}, repeats "
            f"allowed. You have {self._max_guesses} guesses. Call guess with a code."
        )
        return [{"role": "user", "content": text}]

    async def step(self, message: Message) -> StepResult:
        """Judge a guess. Every message of the model uses up a guess, so a game always ends."""
        self._num_guesses += 1
        calls = message.get("tool_calls") or []
        if not calls:
            return self._go_on([{"role": "user", "content": "Call guess with a code."}])
        answers, solved = [], False
        for index, call in enumerate(calls):
            text = self._judge(call["function"]) if index == 0 else "one guess at a time"
            solved = solved or text == "solved"
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if solved:
            return StepResult(answers, reward=1.0, done=True, success=True)
        return self._go_on(answers)

    def _judge(self, function: dict[str, Any]) -> str:
        code = _code_of(function)
        if code is None:
            return 'error: call guess with {"code": "..."}'
        if len(code) != len(self._code) or not set(code) <= set(self._symbols):
            return f"error: {len(self._code)} symbols out of {', '.join(self._symbols)}"
        if code == self._code:
            return "solved"
        in_place, elsewhere = compare(code, self._code)
        self._best = max(self._best, in_place / len(self._code))
        return f"{in_place} in place, {elsewhere} elsewhere"

    def _go_on(self, messages: list[Message]) -> StepResult:
        if self._num_guesses < self._max_guesses:
            return StepResult(messages)
        reward = self._partial_credit * self._best
        return StepResult(messages, reward=reward, done=True, success=False)


def compare(guess: str, code: str) -> tuple[int, int]:
    """The number of symbols of `guess` that are in place, and of those that are elsewhere in the
    code.

    >>> compare("abca", "aabb"), compare("dddd", "abca")
    ((1, 2), (0, 0))
    """
    in_place = sum(a == b for a, b in zip(guess, code, strict=True))
    shared = sum((Counter(guess) & Counter(code)).values())
    return in_place, shared - in_place


def tasks(split: str, *, length: int = 3, symbols: str = "abcd", seed: int = 0) -> Iterator[Task]:
    """Every code once, in a random order that is always the same; the splits share none."""
    codes = ["".join(code) for code in itertools.product(symbols, repeat=length)]
    random.Random(seed).shuffle(codes)
    num_eval = max(1, len(codes) // EVAL_SHARE)
    for code in codes[:num_eval] if split == "eval" else codes[num_eval:]:
        yield Task(f"mastermind-{code}", {"code": code, "symbols": symbols})


def _code_of(function: dict[str, Any]) -> str | None:
    """The guess in a tool call, or None: models write calls that are not."""
    if function.get("name") != "guess":
        return None
    try:
        arguments = json.loads(function.get("arguments") or "")
    except (ValueError, RecursionError):
        return None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return code.strip() if isinstance(code, str) else None
