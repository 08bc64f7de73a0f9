"""The reward by unit tests."""

import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal_sdk import Episode, Outcome
from areal_sdk_code.extract import code_of
from areal_sdk_code.judge import Judge
from areal_sdk_sandbox import Isolation, Limits

_WALL_PER_CPU_S = 2.0
"""Wall-clock seconds per CPU second: on a busy machine a program gets half of the CPU, through no fault of its
own."""


def unit_tests(
    episode: Episode,
    *,
    field: str = "tests",
    fraction: bool = False,
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    isolation: Isolation = "auto",
) -> Coroutine[Any, Any, Outcome]:
    """1.0 when the program in the final text passes all tests of the task; `fraction`: its share.

    A limit that the program meets is the program's failure. A sandbox that cannot start raises, and is
    a fault of the machine.
    """
    # No `async def`: such rewards are judged many at once, and programs that compute would then take each
    # other's time. This one runs in the workers that judge one episode after another.
    limits = Limits(wall_s=_WALL_PER_CPU_S * timeout_s, cpu_s=timeout_s, memory_mb=memory_mb)
    return _judged(episode, field, fraction, Judge(limits, isolation=isolation))


async def _judged(episode: Episode, field: str, fraction: bool, judge: Judge) -> Outcome:
    data = episode.task.data
    if field not in data:
        known = ", ".join(sorted(data)) or "nothing"
        raise ValueError(f"task {episode.task.id!r} has no data[{field!r}]; it has: {known}")
    named = data.get("entry_point") or _function_in(data.get("metadata")) or ()
    try:
        verdict = await judge.judge(
            code_of(episode.final_text),
            data[field],
            setup=str(data.get("test_setup") or ""),
            entry_points=[named] if isinstance(named, str) else _names(named),
            stops_early=not fraction,
        )
    except ValueError as exc:
        raise ValueError(f"task {episode.task.id!r}: {exc}") from exc
    share = verdict.num_passed / verdict.num_tests
    outcome = Outcome.scored(
        share if fraction else float(verdict.passed),
        success=verdict.passed,
        metrics={
            "tests_passed": share,
            "limit_hit": float(bool(verdict.limit)),
            "isolated": float(await judge.is_isolated()),
        },
    )
    return replace(outcome, message=verdict.message)


def _function_in(metadata: object) -> str | None:
    """The name of the function in the metadata of LiveCodeBench, which is text."""
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except ValueError:
            return None
    named = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return str(named) if named else None


def _names(named: object) -> list[str]:
    if isinstance(named, Sequence):
        return [str(name) for name in named]
    raise ValueError(f"entry_point = {named!r}: give a name or a list of names")
