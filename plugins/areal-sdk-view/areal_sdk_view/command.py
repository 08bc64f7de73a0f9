"""`areal-sdk view [RUN ...]`: serve runs to a browser on this machine."""

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; default: a free one.")
@click.option(
    "--export",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write RUN as one offline page.",
)
@click.option(
    "--episodes", default=500, show_default=True, help="With --export: episodes in the page."
)
def view(runs: tuple[Path, ...], port: int, page: Path | None, episodes: int) -> None:
    """Look at runs in a browser, live or a year later.

    RUN is a run's directory, or a directory of runs; default: ./runs. The server listens on this machine alone, and
    its address has a token: nobody else can read what agents said.

    \b
    areal-sdk view
    areal-sdk view runs/Capitals-DATE-TIME
    areal-sdk view runs/Capitals-DATE-TIME --export page.html
    """
    from areal_sdk import ConfigError

    roots = runs or (Path("runs"),)
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"no directory {root}: name a run, or a directory of runs")
    if page is not None:
        from areal_sdk_view.export import export

        if len(runs) != 1:
            raise click.UsageError("--export writes one run: name its directory")
        page.write_bytes(export(runs[0], num_episodes=episodes))
        click.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB; open it in any browser, offline")
        return
    from areal_sdk_view.server import serve

    serve(roots, port=port, say=click.echo)
