"""Tasks for a server's environment: seeds of `reset`."""

from collections.abc import Iterator
from typing import Any

from areal_sdk import Task
from areal_sdk.environment import seeds_of


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
    for reset_seed in seeds_of(split, count=count, eval_count=eval_count, seed=seed):
        yield Task(
            f"openenv-{split}-{reset_seed}", {"reset": {**(reset or {}), "seed": reset_seed}}
        )
