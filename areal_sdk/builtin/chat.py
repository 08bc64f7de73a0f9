"""The simplest agent: one question, one answer, scored by reward functions."""

from areal_sdk.agent import Agent, EpisodeContext
from areal_sdk.types import Message, Task


class Chat(Agent):
    """Sends the task's `messages`, or its `prompt`, and leaves the scoring to the rewards."""

    def __init__(self, *, system: str = "") -> None:
        self.system = system

    async def run(self, task: Task, context: EpisodeContext) -> None:
        await context.generate(self._messages(task))

    def _messages(self, task: Task) -> list[Message]:
        if "messages" in task.data:
            messages = list(task.data["messages"])
        elif "prompt" in task.data:
            messages = [{"role": "user", "content": str(task.data["prompt"])}]
        else:
            known = ", ".join(sorted(task.data)) or "nothing"
            raise ValueError(
                f"task {task.id!r} has neither 'messages' nor 'prompt' for the chat agent; "
                f"it has: {known}"
            )
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return messages
