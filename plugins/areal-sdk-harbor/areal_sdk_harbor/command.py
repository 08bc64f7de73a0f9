"""`areal-sdk harbor check`: what each task's verifier says without work, and of the task's own solution.

`areal-sdk harbor mutate`: tasks out of source distributions.
"""

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


@harbor.command()
@click.argument(
    "sdists", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The directory.")
@click.option("--count", default=5, show_default=True, help="Tasks of each distribution at most.")
@click.option("--seed", default=0, show_default=True, help="Other tasks for another number.")
@click.option(
    "--held-out", default=0.25, show_default=True, help="The share of distributions for eval/."
)
@click.option(
    "--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds of all tests of one."
)
def mutate(
    sdists: tuple[Path, ...],
    output: Path,
    count: int,
    seed: int,
    held_out: float,
    timeout_s: float,
) -> None:
    """Write tasks out of source distributions (.tar.gz) that carry tests.

    In a task one function has a small mistake, which the distribution's own tests notice. Its verdict is theirs. Tests
    run in sandboxes. A distribution is wholly in train/ or wholly in eval/.
    """
    from areal_sdk_harbor.mutants.command import write_tasks

    total = 0
    for line, num in write_tasks(
        sdists, output, count=count, seed=seed, held_out=held_out, timeout_s=timeout_s
    ):
        click.echo(line)
        total += num
    click.echo(f"{total} tasks in {output}")
    if not total:
        raise SystemExit(1)
