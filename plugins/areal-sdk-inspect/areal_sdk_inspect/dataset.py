"""Tasks: the samples of tasks of Inspect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk_inspect.library import INSPECT
from areal_sdk_shared import check_share


def tasks(
    split: str,
    *,
    task: str = "",
    args: dict[str, Any] | None = None,
    eval_task: str = "",
    eval_args: dict[str, Any] | None = None,
    score: str = "",
    roles: dict[str, str] | None = None,
    python: str = "",
    requirements: tuple[str, ...] = (),
    count: int = 1000,
    held_out: float = 0.2,
) -> Iterator[Task]:
    """The samples of a task of Inspect, in its order.

    task: as `inspect eval` names it: `FILE.py`, `FILE.py@NAME`, or a task of an installed package.
    args: of the task's function.
    eval_task, eval_args: held-out samples are those of this task; without both, a share of the samples of `task`.
    score: the scorer whose value is the reward, or `SCORER/KEY` of its values. Needed if there are several.
    roles: the models of roles, as Inspect names models: `{"grader": "openai/gpt-4o"}`.
    python: a Python that has Inspect and what its tasks need. Without one, a virtual environment is made.
    requirements: packages for that virtual environment, such as inspect-evals.
    count: how many samples are read at most.
    held_out: the share for evaluations if there is neither eval_task nor eval_args, chosen by the content of a sample.
    """
    if not task:
        raise ConfigError('[tasks.inspect] task = "": name a task of Inspect, such as my_task.py')
    check_share(held_out)
    is_train = split == "train"
    is_split = not eval_task and eval_args is None
    own = args if is_train or eval_args is None else eval_args
    spec = {"task": _placed(task if is_train else eval_task or task), "args": own or {}}
    program = INSPECT.python(python, requirements)
    order = {"spec": spec, "score": score, "count": count}
    for told in INSPECT.tasks(program, order, what=f"the samples of {spec['task']}"):
        key = str(told["key"])
        if is_split and INSPECT.is_held_out(key, held_out) == is_train:
            continue
        data = {
            "prompt": told["prompt"],
            "index": told["index"],
            "key": key,
            "spec": spec,
            "score": score,
            "roles": roles or {},
            "python": program,
        }
        yield Task(f"{told['task']}/{told['id']}", data)


def _placed(task: str) -> str:
    """The task with the whole path of its file."""
    file, at, name = task.partition("@")
    path = Path(file).expanduser()
    if not (path.suffix == ".py" or path.is_dir()):
        return task
    if not path.exists():
        raise ConfigError(f"[tasks.inspect] task = {task!r}: there is no such file")
    return f"{path.absolute()}{at}{name}"
