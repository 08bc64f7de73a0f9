"""Tasks: the samples of tasks of Inspect."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk_inspect.player import script_words
from areal_sdk_inspect.python import python_with_inspect

_LAST_WORDS = 800


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
    if not 0.0 <= held_out <= 1.0:
        raise ConfigError(f"held_out = {held_out}: give a share from 0.0 to 1.0, such as 0.2")
    is_train = split == "train"
    is_split = not eval_task and eval_args is None
    own = args if is_train or eval_args is None else eval_args
    spec = {"task": _placed(task if is_train else eval_task or task), "args": own or {}}
    program = python_with_inspect(python, requirements)
    order = {"spec": spec, "score": score, "count": count}
    for told in _listed(program, order):
        key = str(told["key"])
        if is_split and _is_held_out(key, held_out) == is_train:
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


def _listed(program: str, order: dict[str, Any]) -> list[dict[str, Any]]:
    ended = subprocess.run(
        script_words(program, "list"),
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise ConfigError(
            f"the samples of {order['spec']['task']} cannot be listed by {program}: "
            f"{ended.stderr.strip()[-_LAST_WORDS:]}"
        )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _is_held_out(key: str, held_out: float) -> bool:
    digest = hashlib.sha256(f"inspect {key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < held_out * 2**64
