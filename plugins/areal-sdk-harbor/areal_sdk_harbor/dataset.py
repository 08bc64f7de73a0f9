"""Tasks: the directories in Harbor's format below one place."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from areal_sdk import ConfigError, Task
from areal_sdk.environment import is_held_out
from areal_sdk.errors import EnvError
from areal_sdk_harbor.definition import Definition, read_definition
from areal_sdk_harbor.image import RefusedError, Run
from areal_sdk_harbor.trial import Room, ready

logger = logging.getLogger(__name__)


def tasks(
    split: str, *, path: str = "", held_out: float = 0.25, skip_refused: bool = False
) -> Iterator[Task]:
    """The tasks of a directory, by name. With `train/` and `eval/` in it, these are the splits.

    path: the directory, or one task's.
    held_out: otherwise the share that is for evaluations, chosen by the name of each task. With 1.0 all are.
    skip_refused: leave out, with a warning, tasks that a sandbox of this machine cannot play. Otherwise they are an error.
    """
    root = Path(path).expanduser().absolute()
    if not path or not root.is_dir():
        raise ConfigError(
            f'[tasks.harbor] path = "{path}": give the directory of tasks in Harbor\'s format'
        )
    if (root / "train").is_dir() and (root / "eval").is_dir():
        found = directories(root / split)
    else:
        is_trained = split == "train"
        found = [
            d for d in directories(root) if is_held_out(f"harbor {d.name}", held_out) != is_trained
        ]
    for definition in playable(found, skip_refused=skip_refused):
        yield Task(definition.name, {"path": str(definition.path)})


def directories(root: Path) -> list[Path]:
    """The task directories at or below `root`, two levels deep."""
    found = [
        file.parent for pattern in ("", "*/", "*/*/") for file in root.glob(f"{pattern}task.toml")
    ]
    return sorted(found, key=lambda path: path.name)


def playable(paths: list[Path], *, skip_refused: bool) -> list[Definition]:
    """The tasks that can be played. ConfigError with all others and their reasons, unless they are skipped."""
    read: list[Definition] = []
    refused: dict[Path, str] = {}
    for path in paths:
        try:
            read.append(read_definition(path))
        except RefusedError as exc:
            refused[path] = str(exc)
    with ThreadPoolExecutor(1, thread_name_prefix="try images") as pool:  # a loop may run here
        for task, why in zip(read, pool.submit(_try_images, read).result(), strict=True):
            if why:
                refused[task.path] = why
    if refused and not skip_refused:
        listed = "\n".join(f"  {path.name}: {why}" for path, why in refused.items())
        raise ConfigError(
            f"{len(refused)} of {len(paths)} tasks cannot be played in a sandbox of this machine:\n{listed}\n"
            "mend them, move them away, or set tasks.harbor.skip_refused=true"
        )
    for path, why in refused.items():
        logger.warning("task %s is left out: %s", path.name, why)
    return [task for task in read if task.path not in refused]


def _try_images(found: list[Definition]) -> list[str]:
    """The reason why its image cannot be made, for each task; the commands of its Dockerfile are tried."""

    async def problem(task: Definition) -> str:
        if not any(isinstance(step, Run) for step in task.image.steps):
            return ""
        try:
            async with ready(task, Room()):
                return ""
        except EnvError as exc:
            return str(exc).partition(": ")[2]

    async def problems() -> list[str]:
        return [await problem(task) for task in found]

    return asyncio.run(problems())
