"""`areal-sdk keys`: keys of callers, made and revoked while a server runs."""

from pathlib import Path

import click

FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def keys() -> None:
    """Make and revoke the keys of `areal-sdk serve --keys FILE`, which notices at the next request.

    \b
    areal-sdk keys make keys.jsonl alice/laptop
    areal-sdk keys revoke keys.jsonl alice/laptop
    areal-sdk serve --model smollm2 --keys keys.jsonl
    """


@keys.command()
@FILE
@click.argument("name", metavar="USER/KEY")
def make(file: Path, name: str) -> None:
    """Make a key and print it. FILE keeps only its digest, so nobody can show the key again."""
    from areal_sdk.gateway.accounts.key_log import make_key

    click.echo(make_key(file, name))


@keys.command()
@FILE
@click.argument("name", metavar="USER[/KEY]")
def revoke(file: Path, name: str) -> None:
    """Revoke a key, or all keys of a user. Answers that are under way come to their end."""
    from areal_sdk.gateway.accounts.key_log import revoke_keys

    for one in revoke_keys(file, name):
        click.echo(f"revoked {one}")


@keys.command(name="list")
@FILE
@click.option("--all", "shows_all", is_flag=True, help="Every line: also what was revoked.")
def list_keys(file: Path, shows_all: bool) -> None:
    """List the valid keys, each with the time when it was made and who made it."""
    from areal_sdk.gateway.accounts.key_log import read_lines, valid_keys

    lines = read_lines(file)
    for line in lines if shows_all else valid_keys(lines):
        done = "made" if line.is_made else "revoked"
        click.echo(f"{line.name}  {done} {line.at} by {line.by}")
