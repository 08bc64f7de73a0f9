"""Tasks of many distributions, split by distribution."""

import asyncio
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from areal_sdk import ConfigError
from areal_sdk_harbor.mutants.distribution import Distribution, read_distribution
from areal_sdk_harbor.mutants.making import broken_ones
from areal_sdk_harbor.mutants.writing import write_task
from areal_sdk_sandbox import why_not_isolated


def write_tasks(
    sdists: Sequence[Path],
    output: Path,
    *,
    count: int,
    seed: int,
    held_out: float,
    timeout_s: float,
) -> Iterator[tuple[str, int]]:
    """A line about each distribution, and how many tasks it gave."""
    if problem := why_not_isolated():
        raise ConfigError(f"harbor mutate runs the tests of others: {problem}")
    for split in ("train", "eval"):
        (output / split).mkdir(parents=True, exist_ok=True)
    found: list[Distribution] = []
    for path in sdists:
        try:
            found.append(read_distribution(path))
        except ConfigError as exc:
            yield f"left out: {exc}", 0
    # By a digest, so that the split does not follow the alphabet.
    found.sort(key=lambda one: hashlib.sha256(f"mutants {one.name}".encode()).digest())
    num_held = round(held_out * len(found))
    if len(found) > 1 and held_out > 0:
        num_held = max(1, num_held)
    for index, one in enumerate(found):
        split = "eval" if index < num_held else "train"
        began = time.monotonic()
        try:
            options = (output / split, count, seed, timeout_s)
            names = asyncio.run(_write(one, *options))
        except ConfigError as exc:
            yield f"left out: {exc}", 0
            continue
        took = time.monotonic() - began
        about = f"{one.name} {one.version} ({one.license})"
        yield f"{split}: {len(names)} tasks of {about} in {took:.0f} s", len(names)


async def _write(
    given: Distribution, output: Path, count: int, seed: int, timeout_s: float
) -> list[str]:
    names: list[str] = []
    async for broken in broken_ones(given, count=count, seed=seed, timeout_s=timeout_s):
        words = f"{given.name}-{broken.mutant.function}".lower()
        names.append(f"{re.sub(r'[^a-z0-9]+', '-', words).strip('-')}-{len(names)}")
        write_task(output / names[-1], given, broken, timeout_s=timeout_s)
    return names
