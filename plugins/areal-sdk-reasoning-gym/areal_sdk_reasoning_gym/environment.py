"""The environment: a question, one answer. The reward `reasoning_gym` judges the answer."""

from collections.abc import Sequence

from areal_sdk import Environment, Message, StepResult, Task

INSTRUCTIONS = "Give your final answer between <answer> and </answer>."


class ReasoningGym(Environment):
    """Asks the task's `question`. It gives no reward: answers are judged in the processes of rewards,
    which can be killed, since scoring simplifies formulas that a model wrote.
    """

    def __init__(self, *, instructions: str = INSTRUCTIONS) -> None:
        """`instructions` follow the question; empty for none."""
        self._instructions = instructions

    async def reset(self, task: Task) -> Sequence[Message]:
        text = "\n".join(part for part in (str(task.data["question"]), self._instructions) if part)
        return [{"role": "user", "content": text}]

    async def step(self, message: Message) -> StepResult:
        return StepResult(done=True)
