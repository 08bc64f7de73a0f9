"""`areal-sdk traces import FILE --from FORMAT` and `areal-sdk traces RUN`."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from areal_sdk_traces.readers import FORMATS
from areal_sdk_traces.writers import OUTPUTS, TARGETS

if TYPE_CHECKING:
    from areal_sdk_traces.book import Book
    from areal_sdk_traces.conversation import JSON, Conversation

_F = TypeVar("_F", bound=Callable[..., Any])
"""A command's function."""
_MOST_REASONS = 20


class _TracesGroup(click.Group):
    """A group where a word that is no command is a run's directory."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_TracesGroup)
def traces() -> None:
    """Turn recorded conversations into data to learn from.

    \b
    areal-sdk traces import exports/ --from langfuse --as sft --output rows.jsonl
    areal-sdk traces runs/serve-DATE-TIME --min-score 1 --user ann --as dpo --output pairs.jsonl
    """


def _shared_options(function: _F) -> _F:
    options = (
        click.option(
            *("--as", "output_format"),
            type=click.Choice([*OUTPUTS]),
            default="conversations",
            show_default=True,
            help="The rows to write.",
        ),
        click.option(
            "--output", type=click.Path(path_type=Path), help="The file; default: stdout."
        ),
        click.option(
            "--book",
            "book_file",
            type=click.Path(path_type=Path),
            help="Write the reason for each row that was left out, as JSON lines.",
        ),
        click.option(
            "--mask",
            default="common",
            show_default=True,
            help="common (e-mail addresses, phone numbers, keys), none, or FILE.py:FUNCTION.",
        ),
        click.option(
            "--reward",
            default="",
            help="Judge each conversation: a reward's name, or FILE.py:FUNCTION. Its score counts.",
        ),
        click.option(
            "--score", "score_name", default="", help="The score that counts, if several do."
        ),
        click.option(
            "--min-score", type=float, help="Only conversations with at least this score."
        ),
        click.option(
            "--tag", "tags", multiple=True, help="Only those with this tag; may be repeated."
        ),
        click.option(
            "--user", "users", multiple=True, help="Only those of this user; may be repeated."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@traces.command(name="import")
@click.argument("source", metavar="FILE|DIR|-")
@click.option("--from", "format", type=click.Choice([*FORMATS]), required=True, help="The format.")
@_shared_options
def import_traces(source: str, format: str, **options: Any) -> None:
    """Read what another tool recorded: JSON or JSON lines, also as .gz.

    Nothing is left out silently: each row that is in no conversation is named with its file, its line and the
    reason. Exit code 0 also if rows are damaged.
    """
    from areal_sdk_traces.as_run import format_of
    from areal_sdk_traces.book import Book
    from areal_sdk_traces.readers import reader_of
    from areal_sdk_traces.rows import STDIN, read_rows

    book = Book()
    stdin = sys.stdin.buffer
    _write(reader_of(format)(read_rows(source, book, stdin=stdin), book), book, **options)
    if book.num_rows and not book.num_conversations and source != STDIN:
        other = format_of(read_rows(source, Book(), stdin=stdin))
        if other not in ("", format):
            click.echo(f"  these rows look like {other}: give --from {other}", err=True)


@traces.command(name="run")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--where", default="", help="A condition on episodes, as `inspect --where` has it.")
@_shared_options
def run_traces(run: Path, where: str, **options: Any) -> None:
    """Read the episodes of a run, such as `serve --record`. The word `run` may be left out.

    The user of a caller's session is the user of its key. The tags are key=NAME, the key that opened the session
    (`serve --keys`), and the metadata of the calls that `serve --upstream` passed on, as KEY=VALUE.
    """
    from areal_sdk_traces.book import Book
    from areal_sdk_traces.recorded import read_run

    book = Book()
    _write(read_run(run, book, where=where), book, **options)


@traces.command(name="arms")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--where", default="", help="A condition on episodes, as `inspect --where` has it.")
@click.option("--score", default="", help="A score of users, such as helpful; default: the reward.")
@click.option("--base", default="", help="The arm to compare with; default: the first one.")
def compare_arms(run: Path, where: str, score: str, base: str) -> None:
    """Compare the models that answered the sessions of a run, such as the arms of `serve.models`.

    A session counts once, for the model that answered all of it. The intervals are 95 %, and take sessions as
    independent. Look at the share that was scored: where customers of one arm rate less often, the means compare
    different customers.
    """
    from areal_sdk_traces.arms import arms_of, differences
    from areal_sdk_traces.book import Book
    from areal_sdk_traces.feedback import Feedback, read_feedback
    from areal_sdk_traces.recorded import read_episodes

    said, nothing = read_feedback(run), Feedback()
    arms = arms_of(
        (one, said.get(one.id, nothing).scores.get(score) if score else one.reward)
        for one, _, _ in read_episodes(run, Book(), where=where)
    )
    if not arms:
        raise click.ClickException(f"{run} has no session with an answer")
    wide = max(map(len, arms))
    for arm in arms.values():
        click.echo(
            f"{arm.name:<{wide}}  {arm.num_sessions} sessions, {len(arm.scores)} scored, "
            f"mean {arm.score or 'unknown'}"
        )
    for one in differences(arms, base):
        shown = "" if one.is_shown else ": not shown to differ"
        click.echo(f"{one.arm} - {one.base}  {one.interval}{shown}")


@traces.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="The format.")
@click.option("--where", default="", help="A condition on episodes, as `inspect --where` has it.")
@click.option("--output", type=click.Path(path_type=Path), help="The file; default: stdout.")
@click.option(
    "--book",
    "book_file",
    type=click.Path(path_type=Path),
    help="Write the reason for each part that was left out, as JSON lines.",
)
def export_traces(
    run: Path, target: str, where: str, output: Path | None, book_file: Path | None
) -> None:
    """Write the episodes of a run for other tools, one JSON value a line.

    All but otel also have the exact tokens that the run's own engine sampled, with their logprobs. Nothing is
    masked, since a masked text would have other tokens. `--to inspect` writes one log for all episodes: name it
    NAME.json, since Inspect reads a log by its name.
    """
    from areal_sdk_traces.book import Book
    from areal_sdk_traces.exporters import export_run

    book = Book()
    _put(export_run(run, target, book, where=where), book, output, book_file)


def _write(
    found: "Iterable[Conversation]",
    book: "Book",
    *,
    output_format: str,
    output: Path | None,
    book_file: Path | None,
    mask: str,
    reward: str,
    score_name: str,
    min_score: float | None,
    tags: tuple[str, ...],
    users: tuple[str, ...],
) -> None:
    from areal_sdk_traces.choice import Choice, chosen
    from areal_sdk_traces.masking import load_mask
    from areal_sdk_traces.writers import writer_of

    if reward:
        from areal_sdk_traces.scoring import judged, load_reward

        name, function = load_reward(reward)
        found, score_name = judged(found, name, function, book), score_name or name
    choice = Choice(min_score, score_name, tags, users)
    kept = chosen(found, book, choice=choice, mask=load_mask(mask))
    _put(writer_of(output_format)(kept, book), book, output, book_file)


def _put(rows: "Iterable[JSON]", book: "Book", output: Path | None, book_file: Path | None) -> None:
    import orjson

    # A list, so that a fault of a reader or a masker leaves no half-written file.
    lines = [orjson.dumps(row) + b"\n" for row in rows]
    book.close()
    if output is None:
        sys.stdout.buffer.write(b"".join(lines))
    else:
        output.write_bytes(b"".join(lines))
    if book_file is not None:
        book_file.write_bytes(
            b"".join(
                orjson.dumps({"place": str(one.place), "fate": one.fate, "reason": one.reason})
                + b"\n"
                for one in book.entries
            )
        )
    _report(book, num_written=len(lines), named=book_file)


def _report(book: "Book", *, num_written: int, named: Path | None) -> None:
    """The summary, on stderr: rows may go to stdout. Damage comes first."""
    from areal_sdk_traces.book import Fate

    told = [f"{book.num_rows} rows", f"{num_written} rows written"]
    if book.num_conversations:
        told.insert(1, f"{book.num_conversations} conversations")
        told.append(f"{book.num_masked} texts masked")
    click.echo(", ".join(told), err=True)
    for fate, count in sorted(book.counts().items()):
        click.echo(f"  {fate}: {count}", err=True)
    worst = sorted(book.entries, key=lambda one: one.fate not in (Fate.DAMAGED, Fate.UNEXPLAINED))
    shown = [] if named else worst[:_MOST_REASONS]
    for entry in shown:
        click.echo(f"  {entry}", err=True)
    if not named and len(book.entries) > len(shown):
        click.echo(
            f"  and {len(book.entries) - len(shown)} more: --book FILE has them all", err=True
        )
