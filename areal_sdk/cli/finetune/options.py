"""The common parts of the fine-tuning commands: options, the begin or resume of a run, the output."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from areal_sdk.command import options_together, setting_options

if TYPE_CHECKING:
    from areal_sdk.config import Config
    from areal_sdk.loop.learning.state import RunSummary

_SHARED = (
    click.option("--model", help="A directory, a hub id, `smollm2` or `tiny`."),
    click.option("--init-from", help="Start from the weights of this run."),
    click.option("--agent", help="Play the held-out tasks of this agent before and after."),
    click.option("--eval-tasks", help="The held-out tasks; default: the agent file's own."),
    click.option(
        "--eval-data", multiple=True, help="Held-out data: its loss is measured before and after."
    ),
    click.option("--steps", type=int, help="Optimiser steps; default: as --epochs needs."),
    click.option("--epochs", type=float, help="Passes over the data; default: 1."),
    click.option("--batch", type=int, help="Rows or pairs a step."),
    click.option("--learning-rate", type=float, help="Of AdamW."),
    click.option("--seed", type=int, help="Of the order of the data."),
    click.option(
        "--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too."
    ),
    setting_options,
    click.option(
        "--dry-run", is_flag=True, help="Check everything, print the settings, do nothing."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)

_RESUME = click.option("--resume", metavar="RUN", help="Go on with a run.")

_KEYS = {
    "data": "finetune.data",
    "eval_data": "finetune.eval_data",
    "steps": "run.steps",
    "seed": "run.seed",
    "epochs": "finetune.epochs",
    "batch": "finetune.batch",
    "beta": "finetune.beta",
    "length_normalised": "finetune.length_normalised",
    "min_reward": "finetune.min_reward",
    "per_task": "finetune.per_task",
    "learning_rate": "trainer.learning_rate",
}


def finetuning_options(*, resumes: bool = True) -> Callable[[Any], Any]:
    """The options that all fine-tuning commands take."""
    return options_together(*_SHARED, *((_RESUME,) if resumes else ()))


def find_config(
    objective: str, *, file: Path | None, settings: tuple[str, ...], **flags: Any
) -> "Config":
    """The settings of a new run: file, `--set`, and the command's own flags."""
    from areal_sdk.config import load_config

    given = {_KEYS.get(name, name): v for name, v in flags.items() if v not in (None, ())}
    return load_config(
        file=file, settings=settings, overrides={"finetune.objective": objective, **given}
    )


def begin_or_resume(
    objective: str, *, resume: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Run `sft`, `dpo` or `reward-model`."""
    from areal_sdk.cli.summary import print_plan
    from areal_sdk.cli.train import limits_of_resumed, refuse_beside_resume
    from areal_sdk.finetune import check, finetune, resume_finetuning

    if resume is not None:
        refuse_beside_resume("--steps", "--set", "--json")
        limits = limits_of_resumed(given)
        summary = resume_finetuning(
            resume, settings=given["settings"], overrides=limits, quiet=as_json
        )
    else:
        config = find_config(objective, **given)
        if dry_run:
            print_plan(check(config))
            return
        summary = finetune(config, quiet=as_json)
    print_finetuning(summary, as_json=as_json)


def print_finetuning(summary: "RunSummary", *, as_json: bool) -> None:
    """Print the summary, with the held-out loss before and after; exit with 1 if the run was interrupted."""
    import orjson

    from areal_sdk.cli.summary import print_summary, table

    if as_json:
        click.echo(orjson.dumps(summary.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        names = {key.partition("/")[2]: None for key in summary.held_out}
        rows = [
            (name, *(_number(summary.held_out, f"{when}/{name}") for when in ("before", "after")))
            for name in names
        ]
        if rows:
            click.echo()
            for line in table([("held-out data", "before", "after"), *rows]):
                click.echo(line)
        print_summary(summary)
    if summary.ended == "interrupted":
        raise SystemExit(1)


def _number(values: Any, key: str) -> str:
    return f"{values[key]:.4f}" if key in values else "-"
