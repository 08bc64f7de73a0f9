"""Which tasks a split has: a JSONL file, a plugin's dataset, or the agent file's own `tasks`."""

from collections.abc import Callable, Iterable
from pathlib import Path

from areal_sdk.builtin.jsonl import read_tasks
from areal_sdk.config import Config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.program import Program
from areal_sdk.plugins import Plugins
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


def load_held_out(
    config: Config,
    split: str,
    *,
    source: str | None,
    program: Program,
    plugins: Plugins,
    say: Callable[[str], None],
) -> list[Task]:
    """What an evaluation of `split` plays: at most `eval.tasks`, and it says so where nobody set that."""
    tasks = load_tasks(source, split, program=program, plugins=plugins)
    most, is_chosen = config.eval.tasks, "tasks" in config.eval.model_fields_set
    if len(tasks) > most and not is_chosen:
        say(f"{split}: the first {most} of {len(tasks)} tasks are measured (eval.tasks)")
    return tasks[:most]


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
