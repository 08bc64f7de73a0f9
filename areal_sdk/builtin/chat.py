"""The simplest agent: one question, one answer, scored by reward functions."""

from collections.abc import Sequence

from areal_sdk.agent import Agent, EpisodeContext
from areal_sdk.types import Message, Task

ASKED = ("messages", "prompt", "question")
"""Fields of a task that may hold the question, as a text or as messages. The first that a task has counts."""


class Chat(Agent):
    """Sends the question of the task to the model, once, and leaves the scoring to the rewards."""

    def __init__(self, *, system: str = "", field: str | None = None) -> None:
        """`field`: the field of a task that holds the question; default: the first of `ASKED` that the task has."""
        self.system = system
        self._fields = ASKED if field is None else (field,)

    async def run(self, task: Task, context: EpisodeContext) -> None:
        await context.generate(self._messages(task))

    def _messages(self, task: Task) -> list[Message]:
        field = next((name for name in self._fields if name in task.data), None)
        if field is None:
            known = ", ".join(sorted(task.data)) or "nothing"
            raise ValueError(
                f"task {task.id!r} has no {' or '.join(map(repr, self._fields))} for the chat agent; "
                f"it has: {known}; name what it asks: --set agent.field=COLUMN"
            )
        asked = task.data[field]
        if not isinstance(asked, (str, Sequence)):
            raise ValueError(
                f"task {task.id!r}: {field!r} is a text or a list of messages, not "
                f"{type(asked).__name__}"
            )
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return messages
