"""Tasks: those of a taskset of verifiers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk_shared import check_share
from areal_sdk_verifiers.library import VERIFIERS, with_harness


def tasks(
    split: str,
    *,
    taskset: str = "",
    options: dict[str, Any] | None = None,
    eval_options: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    python: str = "",
    path: tuple[str, ...] = (),
    requirements: tuple[str, ...] = (),
    count: int = 1000,
    held_out: float = 0.2,
) -> Iterator[Task]:
    """The tasks of a taskset, in its order.

    taskset: its id: the name of its module.
    options: of the taskset's config. eval_options: for held-out tasks, in place of `options`.
    env: of the environment's config, as verifiers reads it: `{"id": "best_of_n"}`, `{"agent": {"harness": {"id": "null"}}}`.
    python: a Python that has verifiers and the taskset. Without one, a virtual environment is made.
    path: directories with modules of tasksets. requirements: packages for the virtual environment.
    count: how many tasks are read at most; a taskset may be without end.
    held_out: the share that is for evaluations if there are no eval_options, chosen by the content of each task.
    """
    if not taskset:
        raise ConfigError('[tasks.verifiers] taskset = "": name a taskset of verifiers')
    check_share(held_out)
    is_train = split == "train"
    own = options if is_train or eval_options is None else eval_options
    config = {**(env or {}), "taskset": {**(own or {}), "id": taskset}}
    program = VERIFIERS.python(python, requirements)
    places = [str(Path(one).expanduser().absolute()) for one in path]
    order = {"env": config, "count": count}
    what = f"the tasks of {taskset}"
    for told in VERIFIERS.tasks(program, order, what=what, path=with_harness(places)):
        key = str(told["key"])
        if eval_options is None and VERIFIERS.is_held_out(key, held_out) == is_train:
            continue
        data = {
            "prompt": told["prompt"],
            "idx": told["idx"],
            "key": key,
            "env": config,
            "python": program,
            "path": places,
        }
        yield Task(f"{taskset}/{told['name'] or told['idx']}", data)
