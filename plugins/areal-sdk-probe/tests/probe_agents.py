"""Agents for a model that answers a letter with a digit from 0 to 3, tells stories, and writes calls that are no JSON."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from areal_sdk import Agent, EpisodeContext, Task

LETTERS = "abcdefghijklmnop"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
_calls = itertools.count()


class Digits(Agent):
    """Learnable: each letter has its digit."""

    asks = "{}"
    tools: tuple[dict[str, Any], ...] = ()

    async def run(self, task: Task, context: EpisodeContext) -> float | None:
        asked = self.asks.format(task.data["letter"])
        turn = await context.generate([{"role": "user", "content": asked}], tools=self.tools)
        return self.judge(turn.text.strip(), task.data["letter"])

    def judge(self, said: str, letter: str) -> float | None:
        return float(said == str(ord(letter) % 4))


class TooHard(Digits):
    def judge(self, said: str, letter: str) -> float:
        return float(said == f"the digit of {letter}")


class TooEasy(Digits):
    def judge(self, said: str, letter: str) -> float:
        return float(len(said) < 99)


class Dice(Digits):
    """The verdict is chance, and is another one when the same answer is judged again."""

    def judge(self, said: str, letter: str) -> float:
        return float(random.Random(next(_calls)).random() < 0.5)


class Failing(Digits):
    def judge(self, said: str, letter: str) -> float:
        return 1.0 / (ord(letter) % 2)


class Silent(Digits):
    def judge(self, said: str, letter: str) -> None:
        return None


class Story(Digits):
    """Cut: the digit comes after a story that is longer than the limit."""

    asks = "story {}"

    def judge(self, said: str, letter: str) -> float:
        return float(said[-1:].isdigit())


class Calls(Digits):
    """The calls of the model are no JSON."""

    asks = "call {}"
    tools = (TOOL,)

    def judge(self, said: str, letter: str) -> float:
        return 0.0


class Pair(Agent):
    """Two turns; the reward depends on both."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": task.data["letter"]}]
        num_even = 0
        for number in range(2):
            turn = await context.generate(messages, max_new_tokens=6)
            messages += [turn.message, {"role": "user", "content": f"more {number}"}]
            num_even += sum(token % 2 for token in turn.output_tokens)
        return num_even / 12


def tasks(split: str) -> Iterator[Task]:
    for number, letter in enumerate(LETTERS):
        yield Task(f"{split}-{number}", {"letter": letter})


def rows() -> Iterator[dict[str, Any]]:
    """Conversations that the model imitates before it is probed."""
    chance = random.Random(0)
    for _ in range(6000):
        letter = chance.choice(LETTERS)
        said = chance.choice([str(chance.randrange(4))] * 2 + ["story", "call"])
        asked, more = letter, {}
        if said == "story":
            asked, said = f"story {letter}", f"once there was a {letter}, " * 3 + "1"
        elif said == "call":
            asked, more = f"call {letter}", {"tools": [TOOL]}
            said = f'<tool_call>\n{{"name": "add", "arguments": {{a: {letter}}}}}\n</tool_call>'
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        yield {"messages": messages, **more}
