"""Tasks: seeds of one environment, and maps of frozen lakes."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk.environment import is_held_out, seeds_of


def tasks(
    split: str,
    *,
    id: str,
    arguments: dict[str, Any] | None = None,
    count: int = 1000,
    eval_count: int = 100,
    seed: int = 0,
) -> Iterator[Task]:
    """Episodes of `gymnasium.make(id, **arguments)`, each with a seed of its own.

    Held-out seeds are never trained on. An environment with few beginnings may still begin alike for two seeds:
    success then shows that it is played well, not that the policy copes with new beginnings.
    """
    for reset_seed in seeds_of(split, count=count, eval_count=eval_count, seed=seed):
        data: dict[str, Any] = {"id": id, "seed": reset_seed}
        if arguments:
            data["arguments"] = arguments
        yield Task(f"{id}-{split}-{reset_seed}", data)


def frozen_lake_maps(
    split: str,
    *,
    size: int = 4,
    ice: float = 0.8,
    slippery: bool = False,
    count: int = 1000,
    eval_count: int = 100,
    held_out: float = 0.2,
    seed: int = 0,
) -> Iterator[Task]:
    """FrozenLake on random maps, each of which has a way.

    The map itself decides to which split it belongs: no option brings a held-out map into training.

    ice: the share of fields without a hole.
    held_out: the share of all maps that is for evaluations.
    """
    if not 0.0 < held_out < 1.0:
        raise ConfigError(f"held_out = {held_out}: give a share between 0 and 1, such as 0.2")
    is_train = split == "train"
    number = count if is_train else eval_count
    generator = random.Random(f"{seed} {split}")
    seen: set[str] = set()
    for attempt in itertools.count():
        if len(seen) == number:
            return
        if attempt > 200 * number:
            raise ConfigError(
                f"only {len(seen)} of {number} maps of size {size} were found for the split {split!r}: "
                "make size larger, or count and eval_count smaller"
            )
        rows = _random_rows(size, ice, generator)
        name = "/".join(rows)
        if name in seen or is_held_out(name, held_out) == is_train or not _has_a_way(rows):
            continue
        seen.add(name)
        arguments = {"desc": rows, "is_slippery": slippery}
        data = {"id": "FrozenLake-v1", "seed": len(seen), "arguments": arguments}
        yield Task(f"frozen-lake-{name}", data)


def _random_rows(size: int, ice: float, generator: random.Random) -> list[str]:
    fields = ["F" if generator.random() < ice else "H" for _ in range(size * size)]
    fields[0], fields[-1] = "S", "G"
    return ["".join(fields[row * size : (row + 1) * size]) for row in range(size)]


def _has_a_way(rows: list[str]) -> bool:
    """Whether G can be reached from S.

    >>> _has_a_way(["SF", "HG"]), _has_a_way(["SH", "HG"])
    (True, False)
    """
    size = len(rows)
    reached, left = {(0, 0)}, [(0, 0)]
    while left:
        row, column = left.pop()
        for there in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            inside = 0 <= there[0] < size and 0 <= there[1] < size
            if inside and there not in reached and rows[there[0]][there[1]] != "H":
                reached.add(there)
                left.append(there)
    return (size - 1, size - 1) in reached
