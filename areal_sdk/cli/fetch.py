"""`areal-sdk fetch`: copies a run from its mirror, so that every command can read it."""

from pathlib import Path

import click

from areal_sdk.cli.main import OnceCommand


@click.command(cls=OnceCommand)
@click.argument("mirror")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The new run directory; default: runs/NAME.",
)
def fetch(mirror: str, directory: Path | None) -> None:
    """Copy the run that is mirrored at MIRROR (its run.mirror), with all its checkpoints.

    \b
    areal-sdk fetch s3://bucket/runs/NAME
    areal-sdk fetch /shared/runs/NAME --to runs/copy

    `areal-sdk train --resume MIRROR` fetches what it needs by itself.
    """
    from areal_sdk.loop.mirrored import fetch_whole
    from areal_sdk.records.report import write_report

    run = fetch_whole(mirror, directory)
    if run.has_begun():
        write_report(run)  # the mirror has that of the run's last end, if any
    click.echo(f"{run.path}; look at it with: areal-sdk inspect {run.path}")
