"""`areal-sdk sft`: supervised fine-tuning on conversations, or on what a run did best."""

from typing import Any

import click

from areal_sdk.cli.finetuning import begin_or_resume, finetuning_options
from areal_sdk.cli.main import OnceCommand


@click.command(cls=OnceCommand)
@click.argument("data", nargs=-1)
@click.option(
    "--min-reward", type=float, help="Of a run's episodes; default: those that succeeded."
)
@click.option("--per-task", type=int, help="At most so many episodes of a task, the best ones.")
@finetuning_options()
def sft(**given: Any) -> None:
    """Imitate DATA: JSONL files of {"messages": [...], "tools": [...]}, or run directories.

    Only assistant messages are trained. Of a run its best episodes are, token by token as sampled.

    \b
    areal-sdk sft rows.jsonl --model smollm2 --eval-data held_out.jsonl
    areal-sdk sft runs/Calculator-20261121-101500 --agent calculator.py
    areal-sdk sft --resume runs/sft-20261121-121500 --steps 200
    """
    begin_or_resume("sft", **given)
