"""`areal-sdk harbor check`: what each task's verifier says without work, and of the task's own solution."""

import asyncio
from pathlib import Path

import click

from areal_sdk import ArealError
from areal_sdk_harbor.dataset import directories
from areal_sdk_harbor.definition import Definition, read_definition
from areal_sdk_harbor.image import RefusedError
from areal_sdk_harbor.trial import Room, Verdict, ready, solve, verify


@click.group()
def harbor() -> None:
    """Tasks in Harbor's format."""


@harbor.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check(path: Path) -> None:
    """Play each task below PATH twice, without work and with its own solution.

    A task is sound if it can be played here, the first has no success, and the second has one.
    """
    found = directories(path)
    unsound = sum(not _check(directory) for directory in found)
    click.echo(f"{len(found) - unsound} of {len(found)} tasks are sound")
    if unsound or not found:
        raise SystemExit(1)


def _check(directory: Path) -> bool:
    """Whether the task is sound; a line about it is printed."""
    try:
        task = read_definition(directory)
        before, after, failure = asyncio.run(_both(task))
    except (RefusedError, ArealError) as exc:
        click.echo(f"{directory.name}: refused: {exc}")
        return False
    solved = _said(after) + (f" (solve.sh: {failure})" if failure else "")
    click.echo(f"{directory.name}: without work {_said(before)}, solved {solved}")
    return before.reward is not None and before.reward < 1.0 <= (after.reward or 0.0)


async def _both(task: Definition) -> tuple[Verdict, Verdict, str]:
    async with ready(task, Room()) as machine:
        before = await verify(machine, task)
    async with ready(task, Room()) as machine:
        failure = await solve(machine, task)
        return before, await verify(machine, task), failure


def _said(verdict: Verdict) -> str:
    return f"no verdict ({verdict.why})" if verdict.reward is None else f"{verdict.reward:g}"
