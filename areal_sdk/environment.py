"""The environment contract: single use, async, messages in and messages out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from areal_sdk.types import Message, Task, Tool


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer of an environment to one assistant message."""

    messages: Sequence[Message] = ()
    """Tool results or user messages to append before the next turn."""
    reward: float | None = None
    """Reward of this turn. None means it was not scored, which is not the same as 0.0."""
    done: bool = False
    success: bool | None = None


class Environment(ABC):
    """One world for one episode: `reset`, then `step` until done, then `close`.

    Keyword parameters of `__init__` are the environment's options, read from `[env.NAME]` and
    checked against their annotations.
    """

    tools: Sequence[Tool] = ()
    """Tool definitions offered to the model at every turn."""

    @abstractmethod
    async def reset(self, task: Task) -> Sequence[Message]:
        """Return the opening messages."""

    @abstractmethod
    async def step(self, message: Message) -> StepResult:
        """Apply one assistant message."""

    async def close(self) -> None:  # noqa: B027 - optional
        """Release resources; called exactly once, whatever happened."""
