"""`areal-sdk plugins`: what is installed, what it brings, and what failed and why."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.plugins import PluginReport


@click.command(name="plugins")
@click.option(
    "--plugin", "files", multiple=True, metavar="FILE", help="List the items of this file too."
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def plugins(files: tuple[str, ...], as_json: bool) -> None:
    """List plugins. Exits with 1 when one of them failed or two claim one name.

    Nothing that a plugin registered by reference is imported for this.
    """
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


def _print_table(reports: "list[PluginReport]") -> None:
    from areal_sdk.cli.report import table

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
