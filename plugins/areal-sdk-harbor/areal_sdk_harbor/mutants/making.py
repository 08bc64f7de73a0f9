"""Makes tasks of a distribution: its functions are changed one at a time, until its own tests fail in the sandbox."""

import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from areal_sdk import ConfigError
from areal_sdk_harbor.machine import Machine
from areal_sdk_harbor.mutants.distribution import Distribution
from areal_sdk_harbor.mutants.operators import Mutant, mutants_of
from areal_sdk_harbor.tree import Tree
from areal_sdk_harbor.trial import Room
from areal_sdk_sandbox import Limits

INSIDE = Path(__file__).parent / "inside"
_WALL_S = 3600.0
_FIND_S = 60.0
_FIND = """\
import os, sys
paths = (os.path.join(place, name) for name in sys.argv[1:] for place in sys.path)
print(next(filter(os.path.exists, paths), ""))
"""
_TRIES = 10
"""Number of mutants that are tried for each task: many change nothing that a test sees."""
_MOST_FAILING = 0.5
"""The share of failing tests above which a mutant says nothing about its place: the package cannot be imported, say."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A mutant that the distribution's tests notice."""

    file: str
    mutant: Mutant
    passing: tuple[str, ...]
    """The tests that passed in every run without the change."""
    failing: tuple[str, ...]


async def broken_ones(
    given: Distribution, *, count: int, seed: int, timeout_s: float
) -> AsyncIterator[Broken]:
    """Mutants, at most `count`, each of another function. The same seed gives the same ones."""
    limits = Limits(wall_s=_WALL_S, cpu_s=_WALL_S, memory_mb=Room().memory_mb, processes=64)
    async with Machine.started(limits, writable=["/app", "/logs", "/tests"]) as machine:
        if found := await _installed(machine, given):
            raise ConfigError(
                f"{given.name} is installed here ({found}), where a model could copy the truth: mutate and train in "
                "an environment without it"
            )
        await machine.put("/tests", _runner())
        before = [await _passing(machine, given, given.tree, timeout_s) for _ in range(2)]
        passing = set.intersection(*before)
        if not passing:
            raise ConfigError(f"no test of {given.name} {given.version} passes in the sandbox")
        candidates = _candidates(given, seed)
        used = set[tuple[str, str]]()
        for file, mutant in candidates[: _TRIES * count]:
            if len(used) == count:
                return
            if (file, mutant.function) in used:
                continue
            tree = given.changed(file, mutant.source)
            failing = passing - await _passing(machine, given, tree, timeout_s)
            if 0 < len(failing) <= max(1, _MOST_FAILING * len(passing)):
                used.add((file, mutant.function))
                yield Broken(file, mutant, tuple(sorted(passing)), tuple(sorted(failing)))


async def _installed(machine: Machine, given: Distribution) -> str:
    """A source file of the distribution that Python would import in the sandbox without its tree; empty if there is none."""
    prefix = f"{given.place}/" if given.place else ""
    names = [name.removeprefix(prefix) for name in given.sources]
    words = ["python3", "-I", "-c", _FIND, *names]
    end = await machine.run(words, cwd="/logs", env={}, timeout_s=_FIND_S)
    return end.output.strip()


def _candidates(given: Distribution, seed: int) -> list[tuple[str, Mutant]]:
    found = []
    for file in given.sources:
        try:
            found += [(file, mutant) for mutant in mutants_of(given.source(file))]
        except (SyntaxError, UnicodeDecodeError):
            continue  # a template, or Python of another time
    random.Random(f"{seed} {given.name} {given.version}").shuffle(found)
    return found


def _runner() -> Tree:
    name = "run_tests.py"
    return Tree(files=((name, 0o644, (INSIDE / name).read_bytes()),))


async def _passing(machine: Machine, given: Distribution, tree: Tree, timeout_s: float) -> set[str]:
    """The names of the tests that pass in a tree; none if they hang."""
    await machine.end_others()
    for directory in ("/app", "/logs"):
        await machine.clear(directory)
    await machine.put("/app", tree)
    report = "/logs/report.json"
    words = ["python3", "-I", "/tests/run_tests.py", "/app", given.place, report, *given.tests]
    env = {"PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    await machine.run(words, cwd="/app", env=env, timeout_s=timeout_s)
    told = await machine.read(report, most=1 << 24)
    return set(json.loads(told)["passed"]) if told else set()
