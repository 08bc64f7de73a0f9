"""`areal-sdk dpo`: direct preference optimisation on pairs of answers."""

from typing import Any

import click

from areal_sdk.cli.finetuning import begin_or_resume, finetuning_options
from areal_sdk.cli.main import OnceCommand


@click.command(cls=OnceCommand)
@click.argument("data", nargs=-1)
@click.option("--beta", type=float, help="A larger one stays closer to the weights it began with.")
@click.option("--length-normalised", is_flag=True, help="Compare mean logprobs a token.")
@finetuning_options()
def dpo(**given: Any) -> None:
    """Prefer the chosen answers of DATA: JSONL files of pairs, or run directories.

    A line is {"messages": [...], "chosen": ..., "rejected": ...}. Of a run, the best and the worst
    episode of each group are a pair.

    \b
    areal-sdk dpo pairs.jsonl --init-from runs/sft-20261121-121500
    areal-sdk dpo runs/Calculator-20261121-101500 --agent calculator.py
    """
    begin_or_resume("dpo", **given)
