"""Tasks for a server's environment: seeds of `reset`."""

from collections.abc import Iterator
from typing import Any

from areal_sdk import ConfigError, Task

EVAL_SEEDS = 1_000_000_000
"""First of the seeds that are held out."""


def tasks(
    split: str,
    *,
    count: int = 1000,
    eval_count: int = 100,
    seed: int = 0,
    reset: dict[str, Any] | None = None,
) -> Iterator[Task]:
    """Episodes of one environment, each with a seed of its own. Held-out seeds are never trained on.

    reset: what `reset` gets beside the seed. A server whose `reset` takes no seed begins all episodes alike.
    """
    is_train = split == "train"
    number = count if is_train else eval_count
    first = seed * number + (0 if is_train else EVAL_SEEDS)
    if is_train and first + number > EVAL_SEEDS:
        raise ConfigError(f"seed = {seed}: choose a smaller one, such as {seed % 1000}")
    for reset_seed in range(first, first + number):
        yield Task(
            f"openenv-{split}-{reset_seed}", {"reset": {**(reset or {}), "seed": reset_seed}}
        )
