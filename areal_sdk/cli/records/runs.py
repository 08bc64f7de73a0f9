"""`areal-sdk runs`: the runs of a directory as a list, or some of them side by side."""

import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.records.overview import RunOverview
    from areal_sdk.telemetry import RunDir

DEFAULT = Path("runs")
MOST_OF_PROBLEM = 4000
"""Maximum number of characters of an error, which may quote a whole log."""


@click.command(name="runs")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR | RUN RUN ...]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def runs(paths: tuple[Path, ...], as_json: bool) -> None:
    """List the runs in DIR (default: runs), newest first, or compare two RUNs or more.

    \b
    areal-sdk runs
    areal-sdk runs runs/calculator-20261121-101500 runs/calculator-20261121-111500
    """
    if len(paths) > 1:
        _compare(paths, as_json=as_json)
    else:
        _list(paths[0] if paths else DEFAULT, as_json=as_json)


def _list(root: Path, *, as_json: bool) -> None:
    from areal_sdk.cli.records.inspect import print_json
    from areal_sdk.cli.summary import table
    from areal_sdk.errors import ConfigError
    from areal_sdk.records.overview import list_runs, overview_of
    from areal_sdk.telemetry.directories import refuse_address

    refuse_address(str(root))
    if not root.is_dir():
        raise ConfigError(f"{root} is no directory: areal-sdk runs DIR lists the runs in DIR")
    if (root / "config.toml").is_file():
        found = [run for run in [overview_of(root)] if run is not None]
    else:
        found = list_runs(root)
    if as_json:
        print_json([run.to_json() for run in found])
        return
    if not found:
        click.echo(f"no runs in {root}")
        return
    header = ("run", "began", "agent", "model", "algorithm", "steps", "held-out", "state")
    rows: list[tuple[str, ...]] = [header]
    rows += [_row(run) for run in found]
    for line in table(rows):
        click.echo(line.rstrip())
    for run in found:
        if run.problem:
            click.echo(_wrapped(f"{run.name}: {_one_line(run.problem, most=MOST_OF_PROBLEM)}"))
    if len(found) > 1:
        first, second = (shlex.quote(run.path) for run in found[:2])
        click.echo(f"\nside by side: areal-sdk runs {first} {second}")


def _row(run: "RunOverview") -> tuple[str, ...]:
    steps = f"{run.steps}/{run.total_steps}" if run.total_steps else str(run.steps or "-")
    return (
        run.name,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began)),
        _one_line(run.agent),
        _one_line(run.model),
        run.algorithm,
        steps,
        _held_out(run),
        run.state,
    )


def _held_out(run: "RunOverview") -> str:
    if run.held_out is None:
        return "-"
    measured = run.held_out
    if measured.after is None:
        return f"{measured.measure} {measured.before:.3f} before"
    before = "" if measured.before is None else f"{measured.before:.3f} -> "
    return f"{measured.measure} {before}{measured.after:.3f}"


def _compare(paths: Sequence[Path], *, as_json: bool) -> None:
    from areal_sdk.cli.records.inspect import print_json
    from areal_sdk.cli.summary import table
    from areal_sdk.records.comparison import differing_settings, figures_of

    found = [_open(path) for path in paths]
    settings = differing_settings([run.read_config() for run in found])
    of_runs = [figures_of(run) for run in found]
    figures = {name: [figure[name] for figure in of_runs] for name in of_runs[0]}
    if as_json:
        names = [str(run.path) for run in found]
        print_json({"runs": names, "settings": settings, "figures": figures})
        return
    names = _names(paths)
    rows = [("figure", *names)]
    rows += [
        (name, *(_number(v) for v in values))
        for name, values in figures.items()
        if any(value is not None for value in values)
    ]
    _print_table(table(rows))
    if not settings:
        click.echo("\nall settings are the same")
        return
    click.echo()
    _print_table(
        table([("setting", *names), *((key, *map(_value, v)) for key, v in settings.items())])
    )


def _open(path: Path) -> "RunDir":
    """The run in `path`. ConfigError if there is no run, or if its files are not those of a run."""
    from areal_sdk.errors import ConfigError
    from areal_sdk.records.overview import RunFate, overview_of
    from areal_sdk.telemetry import RunDir

    run = RunDir.open(path)
    overview = overview_of(path)
    if overview is None or overview.state is RunFate.UNREADABLE:
        why = overview.problem if overview else "its settings name no model"
        raise ConfigError(f"{path} cannot be read as a run: {why}")
    return run


def _print_table(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line.rstrip())


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names, unless two runs share one."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _value(value: object) -> str:
    return "-" if value is None else _one_line(str(value))


def _wrapped(line: str) -> str:
    """The line, broken between words at the width of a terminal: its end is often the cause. A
    piped line stays whole."""
    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _one_line(text: str, most: int = 60) -> str:
    from areal_sdk.cli.records.episode import printable

    text = " ".join(printable(text).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
