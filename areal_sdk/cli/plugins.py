"""`areal-sdk plugins`: what is installed, what it brings, what failed and why; and the contract."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.plugins import PluginReport
    from areal_sdk.testing.plugins import Verdict

_MOST_TASKS = 10
"""Number of tasks of a file that are tried at most."""


@click.group(name="plugins", invoke_without_command=True)
@click.option(
    "--plugin", "files", multiple=True, metavar="FILE", help="List the items of this file too."
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def plugins(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """List plugins. Exits with 1 when one of them failed or two claim one name.

    Nothing that a plugin registered by reference is imported for this.

    \b
    areal-sdk plugins
    areal-sdk plugins check areal-sdk-math
    """
    if ctx.invoked_subcommand is not None:
        return
    from areal_sdk.plugins import load_plugins

    loaded = load_plugins(files=map(Path, files))
    if as_json:
        import orjson

        data = {"plugins": loaded.report(), "failures": loaded.failures()}
        click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())
    else:
        _print_table(loaded.report())
        for problem in loaded.failures():
            click.echo(click.style("failed: ", fg="red") + problem)
    if loaded.failures():
        raise SystemExit(1)


@plugins.command()
@click.argument("distribution", nargs=-1)
@click.option(
    "--plugin", "files", multiple=True, metavar="FILE", help="Check the plugin in this file."
)
@click.option(
    "--tasks",
    type=click.Path(path_type=Path),
    help="A file of tasks (JSONL, JSON, CSV, Parquet) or a saved dataset to try rewards and environments on; "
    "default: the plugin's own.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.OPTION=VALUE",
    help="An option of an item: reward.polite.word=please.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def check(
    distribution: tuple[str, ...],
    files: tuple[str, ...],
    tasks: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check that everything which a plugin brings keeps its contract; by default all installed plugins.

    Each plugin is loaded in a process of its own, which may crash or hang. Exits with 1 when a contract is broken.
    """
    import asyncio

    from areal_sdk.config import load_config
    from areal_sdk.plugins import installed_plugins
    from areal_sdk.testing.plugins import Verdict, judge_plugin, sources_of

    options = load_config(settings=settings).options
    names = distribution or (
        ()
        if files
        else sorted({s.distribution for s in installed_plugins()} - {"areal-sdk"}, key=str.lower)
    )
    for name in names:
        sources_of(name)  # a misspelt one is an error before the first is checked

    async def judge(lines: Path | None) -> list[tuple[str, list[Verdict]]]:
        found = [(name, None) for name in names] + [(path, Path(path)) for path in files]
        return [
            (name, await judge_plugin(name, options=options, tasks=lines, file=file))
            for name, file in found
        ]

    with tempfile.TemporaryDirectory(prefix="areal-sdk-check-") as scratch:
        lines = None if tasks is None else _first_tasks(tasks, Path(scratch) / "tasks.jsonl")
        judged = asyncio.run(judge(lines))
    if as_json:
        import orjson

        click.echo(orjson.dumps(dict(judged), option=orjson.OPT_INDENT_2).decode())
    else:
        _print_verdicts([verdict for _, verdicts in judged for verdict in verdicts])
    if any(verdict.problem for _, verdicts in judged for verdict in verdicts):
        raise SystemExit(1)


def _first_tasks(path: Path, lines: Path) -> Path:
    """The first tasks of any file of tasks, written as JSONL to `lines`."""
    from itertools import islice

    from areal_sdk.builtin.tasks import read_tasks
    from areal_sdk.telemetry.files import to_json

    first = islice(read_tasks(path), _MOST_TASKS)
    lines.write_bytes(b"".join(to_json({"id": t.id, "data": dict(t.data)}) + b"\n" for t in first))
    return lines


def _print_verdicts(verdicts: "Sequence[Verdict]") -> None:
    if not verdicts:
        click.echo("no plugin is installed: areal-sdk init plugin NAME writes one")
    for verdict in verdicts:
        mark = (
            click.style("broken: ", fg="red")
            if verdict.problem
            else click.style("ok: ", fg="green")
        )
        click.echo(mark + verdict.what + (f": {verdict.problem}" if verdict.problem else ""))


def _print_table(reports: "list[PluginReport]") -> None:
    from areal_sdk.cli.summary import table

    rows = [("distribution", "version", "plugin", "status", "brings")]
    for report in reports:
        brings = [f"{kind}s: {', '.join(names)}" for kind, names in report.brings.items()]
        if report.observes:
            brings.append(f"observes: {', '.join(report.observes)}")
        first, *rest = brings or ["-"]
        rows.append((report.distribution, report.version, report.name, report.status, first))
        rows += [("", "", "", "", more) for more in rest]
    for line in table(rows):
        click.echo(line.rstrip())
