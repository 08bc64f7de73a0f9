"""The environment contract: single use, async, messages in and messages out."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.types import Message, Task, Tool

EVAL_SEEDS = 1_000_000_000
"""First of the seeds that are held out."""


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


def read_arguments(call: Message) -> dict[str, Any] | None:
    """The arguments of a tool call; None if the model wrote no JSON object.

    >>> read_arguments({"function": {"name": "add", "arguments": '{"a": 1}'}})
    {'a': 1}
    >>> read_arguments({"function": {"name": "look", "arguments": ""}})
    {}
    """
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def is_held_out(key: str, share: float) -> bool:
    """Whether the task with the content `key` is for evaluations, which get `share` of all tasks. The key alone decides:
    no option of a dataset brings a held-out task into training.

    >>> [n for n in range(12) if is_held_out(f"sums {n}", 0.25)]
    [1, 5, 8, 11]
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"held_out = {share}: give a share from 0.0 to 1.0, such as 0.25")
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def seeds_of(split: str, *, count: int, eval_count: int, seed: int) -> range:
    """A seed for each task of a split: `count` to train on, or `eval_count` that are never trained on.

    Another `seed` gives other seeds.

    >>> seeds_of("train", count=3, eval_count=2, seed=1), seeds_of("eval", count=3, eval_count=2, seed=0)[0]
    (range(3, 6), 1000000000)
    """
    is_train = split == "train"
    number = count if is_train else eval_count
    first = seed * number + (0 if is_train else EVAL_SEEDS)
    if is_train and first + number > EVAL_SEEDS:
        raise ConfigError(f"seed = {seed}: choose a smaller one, such as {seed % 1000}")
    return range(first, first + number)
