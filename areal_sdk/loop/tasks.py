"""Which tasks a split has: a JSONL file, a plugin's dataset, or the agent file's own `tasks`."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.builtin.jsonl import read_tasks
from areal_sdk.config import Config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.program import Program
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.seeds import stable_seed
from areal_sdk.types import Task


def load_tasks(source: str | None, split: str, *, program: Program, plugins: Plugins) -> list[Task]:
    """The tasks of `split`, in a stable order. Empty or ambiguous data is an error here, not later."""
    if source is None:
        if program.tasks is None:
            raise ConfigError(
                f"no tasks for {program.name!r}: give --tasks FILE.jsonl, or define "
                "`def tasks(split)` beside the agent"
            )
        return _checked(program.tasks(split), f"tasks({split!r}) of {program.name!r}")
    if source.endswith((".jsonl", ".json")) or Path(source).exists():
        return _checked(read_tasks(Path(source)), source)
    return _checked(plugins.datasets.get(source)(split), f"dataset {source!r} ({split})")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What an evaluation of a split plays, and of how many tasks."""

    tasks: Sequence[Task]
    num_available: int


def load_held_out(
    config: Config,
    split: str,
    *,
    source: str | None,
    program: Program,
    plugins: Plugins,
    say: Callable[[str], None],
) -> HeldOut:
    """At most `eval.tasks` tasks of `split`, drawn by the run's seed; says so where nobody set that.

    Files often hold one source after the other, so the first tasks are no sample of the rest.
    """
    tasks = load_tasks(source, split, program=program, plugins=plugins)
    most, seed = config.eval.tasks, config.run.seed
    if len(tasks) > most and "tasks" not in config.eval.model_fields_set:
        drawn = f"{most} of {len(tasks)} tasks are measured, drawn by run.seed = {seed}"
        say(f"{split}: {drawn} (eval.tasks)")
    return HeldOut(_sample(tasks, most, seed=stable_seed("held-out", seed, split)), len(tasks))


def _sample(tasks: Sequence[Task], most: int, *, seed: int) -> tuple[Task, ...]:
    """At most `most` of `tasks`, in their order."""
    if len(tasks) <= most:
        return tuple(tasks)
    return tuple(
        tasks[place] for place in sorted(random.Random(seed).sample(range(len(tasks)), most))
    )


def _checked(items: Iterable[Task], what: str) -> list[Task]:
    tasks: list[Task] = []
    seen: set[str] = set()
    for item in items:
        if not isinstance(item, Task):
            raise ConfigError(f"{what} yields {type(item).__name__}: yield areal_sdk.Task(id=...)")
        if item.id in seen:
            raise ConfigError(
                f"{what}: two tasks have the id {item.id!r}; ids key groups and resumes"
            )
        seen.add(item.id)
        tasks.append(item)
    if not tasks:
        raise ConfigError(f"{what}: no tasks")
    return tasks
