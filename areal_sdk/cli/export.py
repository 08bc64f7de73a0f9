"""`areal-sdk export`: a run's weights as a model for others."""

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from areal_sdk.loop.export import Choice, Exported


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    help="Write the model to this directory, which must not exist or be empty.",
)
@click.option("--push", "name", metavar="OWNER/NAME", help="Upload the model to the hub.")
@click.option("--private", is_flag=True, help="With --push: make a private repository.")
@click.option("--step", type=click.IntRange(min=0), help="The weights of this step's checkpoint.")
@click.option(
    "--best", "which", flag_value="best", help="The best weights; default, where there are any."
)
@click.option("--last", "which", flag_value="last", help="The last weights.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Dtype of the weights; default: the one that the run evaluated.",
)
@click.option("--adapter", is_flag=True, help="Write the adapter alone, not the merged model.")
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Play the run's held-out tasks on the exported files; default: where the tasks are at hand.",
)
def export(
    run: Path,
    directory: Path | None,
    name: str | None,
    private: bool,
    step: int | None,
    which: Literal["best", "last"] | None,
    dtype: str | None,
    adapter: bool,
    measure: bool | None,
) -> None:
    """Write a model of RUN for others: weights, config, tokenizer, chat template, and a model card.

    \b
    areal-sdk export runs/MyAgent-20261121-101500 --to my-model
    areal-sdk export runs/MyAgent-20261121-101500 --push me/my-model

    transformers loads the result. The card tells the success of the exported files themselves. The upload uses
    huggingface_hub: its token, and HF_ENDPOINT.
    """
    from areal_sdk.loop.export import check_empty, check_name, choose, measuring, push, write_export
    from areal_sdk.telemetry import RunDir

    if directory is None and name is None:
        raise click.UsageError("say where: --to DIR, --push OWNER/NAME, or both")
    if step is not None and which is not None:
        raise click.UsageError(f"--step and --{which} are two choices: leave one out")
    if private and name is None:
        raise click.UsageError("--private is an option of --push")
    if measure and adapter:
        raise click.UsageError("--adapter leaves nothing that could be measured alone")
    choice = choose(RunDir.open(run), which, step=step)
    if name is not None:
        check_name(name)
    with tempfile.TemporaryDirectory() as scratch:
        target = directory or Path(scratch) / (name or "").rpartition("/")[2]
        check_empty(target)  # before anything is loaded
        figures = measuring(choice.run, asked=False if adapter else measure)
        exported = write_export(choice, target, dtype=dtype, adapter=adapter, measure=figures)
        if directory is not None:
            click.echo(f"{directory}: the weights are {choice.name}, {exported.dtype}")
        _tell(choice, exported)
        if name is not None:
            try:
                click.echo(push(target, name, private=private))
            except Exception as exc:
                if directory is not None:
                    exc.add_note(f"the model is in {shlex.quote(str(directory))}")
                raise


def _tell(choice: "Choice", exported: "Exported") -> None:
    """Print the success of the files beside the run's own figures, and what was lost by rounding."""
    from areal_sdk.loop.export.card import is_untrained, measured_in_run

    if is_untrained(choice):
        click.echo(
            "warning: these weights are the untrained model's: no step up to them had a gradient",
            err=True,
        )
    if (lost := exported.rounding) is not None:
        click.echo(str(lost) if exported.is_rounded else f"keep float32: {lost}")
    if exported.num_vanished:
        click.echo(
            f"{exported.num_vanished} weights are too small for {exported.dtype} and became 0: --dtype bfloat16 "
            "or float32 keeps them"
        )
    in_run = measured_in_run(choice, choice.run.read_history())
    for split, report in exported.figures.reports.items():
        known = in_run.get((split, "run"), {}).get("success")
        beside = "" if known is None else f", in the run {known:.3f}"
        click.echo(f"{split}: success {report.success or '-'} on these files{beside}")
        if report.success is not None and known is not None and report.success.high < known:
            click.echo(f"warning: {split}: these files do less than the run's weights", err=True)
    if problem := exported.figures.problem:
        click.echo(f"not measured, so the card has the run's figures: {problem}", err=True)
