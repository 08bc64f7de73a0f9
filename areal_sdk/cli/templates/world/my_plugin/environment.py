"""An environment is one world for one episode: `reset`, then `step` until it is done."""

import re
from collections.abc import Sequence

from areal_sdk import Environment, Message, StepResult, Task


class MyPlugin(Environment):
    """A sum, and a hint after each wrong answer. The task's data: `question` and `answer`."""

    def __init__(self, *, tries: int = 3) -> None:  # options, from [env.my_plugin]
        self._tries = tries

    async def reset(self, task: Task) -> Sequence[Message]:
        self._answer = int(task.data["answer"])
        text = f"{task.data['question']} Say the number alone. You have {self._tries} tries."
        return [{"role": "user", "content": text}]

    async def step(self, message: Message) -> StepResult:
        """Judge a guess. Every message of the model uses up a try, so an episode always ends."""
        self._tries -= 1
        said = number_in(str(message.get("content") or ""))
        if said == self._answer:
            return StepResult(reward=1.0, done=True, success=True)
        hint = "That is no number."
        if said is not None:
            hint = "Too low." if said < self._answer else "Too high."
        is_over = self._tries <= 0
        return StepResult(
            [*no_tools(message), {"role": "user", "content": hint}],
            reward=0.0 if is_over else None,  # None: this turn was not judged
            done=is_over,
            success=False if is_over else None,
        )


def no_tools(message: Message) -> list[Message]:
    """An answer to each tool call: models call what nobody offered, and chat APIs want answers."""
    calls = message.get("tool_calls") or ()
    text = "There are no tools."
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


def number_in(text: str) -> int | None:
    """The only number in the text; None for several, or one too long to be meant."""
    numbers = re.findall(r"-?[0-9]+", text)
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) < 19 else None
