"""Two tools in order: read a drawer, then send what was in it."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

DRAWERS, NUM_TURNS = "abcdefgh", 3
NUM_DEMONSTRATIONS = 2000


class TwoTools(Environment):
    """Success is "open c", answered by "7", then "send 7". One wrong call is forgiven, a wrong sending is not."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.drawer, self.content = task.data["drawer"], str(task.data["content"])
        self.is_open, self.num_left = False, NUM_TURNS
        return [_user(self.drawer)]

    async def step(self, message: Message) -> StepResult:
        self.num_left -= 1
        call = " ".join((message.get("content") or "").split())
        if call.startswith("send"):
            is_right = self.is_open and call == f"send {self.content}"
            return StepResult(reward=float(is_right), done=True, success=is_right)
        if self.num_left == 0:
            return StepResult(reward=0.0, done=True, success=False)
        if call == f"open {self.drawer}":
            self.is_open = True
            return StepResult([_user(self.content)])
        return StepResult([_user("error")])


def tasks(split: str) -> Iterator[Task]:
    """Every seventh pair of drawer and content is held out."""
    for number, (drawer, content) in enumerate(product(DRAWERS, range(10))):
        if (number % 7 == 0) == (split == "eval"):
            yield Task(id=f"{drawer}{content}", data={"drawer": drawer, "content": content})


def demonstrations() -> Iterator[list[Message]]:
    """Calls of a player who mixes up tools and arguments."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        task = generator.choice(known)
        drawer, content = task.data["drawer"], str(task.data["content"])
        messages, is_open = [_user(drawer)], False
        for _ in range(NUM_TURNS):
            right = "send" if is_open else "open"
            tool = right if generator.random() < 0.7 else generator.choice(["open", "send"])
            argument = content if is_open else drawer
            if generator.random() < 0.2:
                argument = generator.choice([*DRAWERS, *map(str, range(10))])
            messages.append({"role": "assistant", "content": f"{tool} {argument}"})
            if tool == "send":
                break
            is_open = is_open or argument == drawer
            messages.append(_user(content if argument == drawer else "error"))
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
