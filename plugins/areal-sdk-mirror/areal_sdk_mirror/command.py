"""`areal-sdk fetch`: copies a run from its mirror, so that every command can read it."""

from pathlib import Path

import click

from areal_sdk.command import OnceCommand


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
    """Copy a run from its mirror.

    MIRROR is the run.mirror of the run. All checkpoints are copied.

    \b
    areal-sdk fetch s3://bucket/runs/NAME
    areal-sdk fetch /shared/runs/NAME --to runs/copy

    `areal-sdk train --resume MIRROR` fetches what it needs by itself.
    """
    from areal_sdk_mirror.fetching import fetch_whole

    path = fetch_whole(mirror, directory)
    click.echo(f"{path}; look at it with: areal-sdk inspect {path}")
