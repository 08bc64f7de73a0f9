"""A trial: the sandbox of a task, made ready, and the verdict of the task's own verifier."""

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from areal_sdk.errors import EnvError
from areal_sdk_harbor.definition import Definition
from areal_sdk_harbor.image import Run
from areal_sdk_harbor.machine import Machine, MachineEndedError, OrderError
from areal_sdk_harbor.tree import Tree
from areal_sdk_sandbox import Limits

REWARD_JSON, REWARD_TXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
"""The files of a verdict. The first that is there counts, as in Harbor."""
MAX_REWARD_BYTES = 64 << 10
BUILD_S = 120.0
_MARGIN_S = 120.0
_LAST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of a trial's sandbox, besides those of the task."""

    memory_mb: int = 2048
    processes: int = 64
    disk_mb: int = 256

    def limits(self, task: Definition) -> Limits:
        wall_s = BUILD_S + task.agent_timeout_s + task.verifier_timeout_s + _MARGIN_S
        return Limits(
            wall_s=wall_s,
            cpu_s=wall_s * self.processes,
            memory_mb=min(self.memory_mb, task.memory_mb or self.memory_mb),
            processes=self.processes,
            disk_mb=self.disk_mb,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word of a verifier: a reward, or why there is none."""

    reward: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Other numbers of `reward.json`."""
    why: str = ""
    """The reason why there is no reward."""


@asynccontextmanager
async def ready(
    task: Definition,
    room: Room,
    *,
    readable: Sequence[str] = (),
    reaches: tuple[str, int] | None = None,
) -> AsyncIterator[Machine]:
    """The sandbox of a task, as its image says. `EnvError`: a command of its Dockerfile fails."""
    limits = room.limits(task)
    opened = Machine.started(limits, writable=task.writable, readable=readable, reaches=reaches)
    async with opened as machine:
        try:
            await _build(machine, task)
        except (MachineEndedError, OrderError) as exc:
            raise EnvError(f"task {task.name}: its image cannot be made: {exc}") from None
        yield machine


async def _build(machine: Machine, task: Definition) -> None:
    if task.image.workdir != "/":
        await machine.put(task.image.workdir, Tree())
    for step in task.image.steps:
        if not isinstance(step, Run):
            await machine.put(step.into, step.tree)
            continue
        words, env = ["bash", "-c", step.command], task.env
        end = await machine.run(words, cwd=step.workdir, env=env, timeout_s=BUILD_S)
        if end.code:
            raise OrderError(f"RUN {step.command}: {_last(end.output, end.code)}")
    await machine.put("/logs/agent", Tree())


async def verify(machine: Machine, task: Definition) -> Verdict:
    """The verdict of the task's verifier, which finds none of the agent's processes, and neither logs nor tests of it."""
    try:
        await machine.end_others()
        for directory in ("/logs", "/tests"):
            await machine.clear(directory)
        await machine.put("/logs/verifier", Tree())
        await machine.put("/logs/home", Tree())
        await machine.put("/tests", task.tests)
        end = await machine.run(
            ["bash", "/tests/test.sh"],
            cwd=task.image.workdir,
            # A home of its own: an agent may have left programs or Python modules in the usual one.
            env={**task.env, "HOME": "/logs/home", "PYTHONNOUSERSITE": "1", **task.verifier_env},
            timeout_s=task.verifier_timeout_s,
        )
        if end.is_late:
            return Verdict(None, why=f"tests/test.sh ran longer than {task.verifier_timeout_s:g} s")
        await machine.end_others()  # nothing changes the verdict while it is read
        for path in (REWARD_JSON, REWARD_TXT):
            text = await machine.read(path, most=MAX_REWARD_BYTES)
            if text is not None:
                return read_reward(text, is_json=path == REWARD_JSON)
    except (MachineEndedError, OrderError) as exc:
        return Verdict(None, why=str(exc))
    return Verdict(None, why=f"tests/test.sh wrote no reward: {_last(end.output, end.code)}")


async def solve(machine: Machine, task: Definition) -> str:
    """Run the task's own solution; why it failed, or an empty text."""
    if task.solution is None:
        return "it has no solution/"
    try:
        await machine.put("/solution", task.solution)
        end = await machine.run(
            ["bash", "/solution/solve.sh"],
            cwd=task.image.workdir,
            env={**task.env, **task.solution_env},
            timeout_s=task.agent_timeout_s,
        )
    except (MachineEndedError, OrderError) as exc:
        return str(exc)
    return _last(end.output, end.code) if end.code else ""


def read_reward(text: str, *, is_json: bool) -> Verdict:
    """The verdict that a reward file holds.

    >>> read_reward("0.5\\n", is_json=False).reward
    0.5
    >>> read_reward('{"reward": 1, "speed": 0.25}', is_json=True)
    Verdict(reward=1.0, metrics={'speed': 0.25}, why='')
    >>> read_reward('{"a": 1, "b": 0}', is_json=True).why
    'reward.json has several numbers, and none is called reward'
    """
    name = "reward.json" if is_json else "reward.txt"
    try:
        found = json.loads(text) if is_json else float(text)
    except (ValueError, RecursionError):
        return Verdict(None, why=f"{name} holds {shorten(text)}")
    numbers = found if isinstance(found, dict) else {"reward": found}
    if len(numbers) == 1:
        numbers = {"reward": next(iter(numbers.values()))}
    for value in numbers.values():
        if not _is_finite(value):
            return Verdict(
                None, why=f"{name} holds {shorten(str(value))}, which is no finite number"
            )
    if "reward" not in numbers:
        return Verdict(None, why=f"{name} has several numbers, and none is called reward")
    others = {key: float(value) for key, value in numbers.items() if key != "reward"}
    return Verdict(float(numbers["reward"]), others)


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def shorten(text: str) -> str:
    return repr(text.strip()[:80])


def _last(output: str, code: int) -> str:
    said = output.strip()[-_LAST_WORDS:]
    return f"exit code {code}{f': {said}' if said else ''}"
