"""`areal-sdk export`: a run's weights as a model for others."""

import shlex
import tempfile
from pathlib import Path
from typing import Literal

import click


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
def export(
    run: Path,
    directory: Path | None,
    name: str | None,
    private: bool,
    step: int | None,
    which: Literal["best", "last"] | None,
    dtype: str | None,
    adapter: bool,
) -> None:
    """Write a model of RUN for others: weights, config, tokenizer, chat template, and a model card.

    \b
    areal-sdk export runs/MyAgent-20261121-101500 --to my-model
    areal-sdk export runs/MyAgent-20261121-101500 --push me/my-model

    transformers loads the result. The upload uses huggingface_hub: its token, and HF_ENDPOINT.
    """
    from areal_sdk.loop.export import check_name, choose, push, write_export
    from areal_sdk.telemetry import RunDir

    if directory is None and name is None:
        raise click.UsageError("say where: --to DIR, --push OWNER/NAME, or both")
    if step is not None and which is not None:
        raise click.UsageError(f"--step and --{which} are two choices: leave one out")
    if private and name is None:
        raise click.UsageError("--private is an option of --push")
    choice = choose(RunDir.open(run), which, step=step)
    if name is not None:
        check_name(name)
    with tempfile.TemporaryDirectory() as scratch:
        target = directory or Path(scratch) / (name or "").rpartition("/")[2]
        exported = write_export(choice, target, dtype=dtype, adapter=adapter)
        if directory is not None:
            click.echo(f"{directory}: the weights are {choice.name}, {exported.dtype}")
        if exported.rounding is not None:
            click.echo(str(exported.rounding))
        if name is not None:
            try:
                click.echo(push(target, name, private=private))
            except Exception as exc:
                if directory is not None:
                    exc.add_note(f"the model is in {shlex.quote(str(directory))}")
                raise
