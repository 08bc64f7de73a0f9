"""`areal-sdk view [RUN ...]`: serve runs to a browser on this machine."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; default: a free one.")
@click.option(
    "--export",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the RUNs as one offline page.",
)
@click.option(
    "--episodes", type=click.IntRange(1), default=500, help="With --export: episodes; default: 500."
)
@click.option(
    "--check-report",
    "report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Hold the quotes of a report in Markdown against the record; exit 1 if one is wrong.",
)
def view(
    runs: tuple[Path, ...], port: int, page: Path | None, episodes: int, report: Path | None
) -> None:
    """Look at runs in a browser, live or a year later.

    RUN is a run's directory, or a directory of runs; default: ./runs. It may also be what another tool recorded: a log of
    Inspect (.eval, .json), trajectories in ATIF, traces of verifiers, and what else areal-sdk-traces reads. The server listens on this machine alone, and
    its address has a token: nobody else can read what agents said.

    \b
    areal-sdk view
    areal-sdk view runs/Capitals-DATE-TIME
    areal-sdk view runs/Capitals-DATE-TIME --export page.html
    areal-sdk view runs --check-report report.md
    areal-sdk view logs/*.eval
    """
    with tempfile.TemporaryDirectory(prefix="areal-sdk-view-") as scratch:
        roots = [_directory(one, Path(scratch)) for one in runs or (Path("runs"),)]
        if report is not None:
            _check(report, roots)
        elif page is not None:
            from areal_sdk_view.export import export

            if not runs or not all((root / "config.toml").is_file() for root in roots):
                raise click.UsageError("--export writes runs that you name: give their directories")
            if not page.parent.is_dir():
                raise click.UsageError(f"no directory {page.parent} for the page: make it first")
            page.write_bytes(export(*roots, num_episodes=episodes))
            size = page.stat().st_size / 1e6
            click.echo(f"{page}: {size:.1f} MB; open it in any browser, offline")
        else:
            from areal_sdk_view.server import serve

            try:
                serve(roots, port=port, say=click.echo)
            except OSError as exc:
                raise click.UsageError(f"{exc.strerror}: leave --port out for a free one") from exc


def _directory(given: Path, scratch: Path) -> Path:
    """The directory of a run or of runs. What another tool recorded is written below `scratch` as a run."""
    from areal_sdk import ConfigError
    from areal_sdk_traces.as_run import write_run

    if given.is_dir():
        return given
    if not given.is_file():
        raise ConfigError(f"no directory {given}: name a run, or a directory of runs")
    return write_run(given, Path(tempfile.mkdtemp(dir=scratch)), say=click.echo)


def _check(report: Path, roots: Sequence[Path]) -> None:
    from areal_sdk import ConfigError
    from areal_sdk_view.library import Library
    from areal_sdk_view.report import check

    try:
        text = report.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the report {report}: {exc}") from exc
    found = check(text, Library(roots))
    for problem in found.problems:
        click.echo(f"{report}:{problem.line}: {problem.text}")
    num, quotes = len(found.problems), f"{found.num_quotes} quote{'s'[: found.num_quotes != 1]}"
    said = f"{quotes}, all of them in the record"
    if num:
        said = f"{num} problem{'s'[: num != 1]}; {quotes} checked"
    elif not found.num_quotes:
        said = "no quote to check: begin its lines with '> ', and link its episode"
    click.echo(f"{report}: {said}")
    if num or not found.num_quotes:
        raise SystemExit(1)
