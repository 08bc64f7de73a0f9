"""`areal-sdk sft`, `dpo` and `reward-model`: one run each, from data that is given."""

from typing import Any

import click

from areal_sdk.cli.finetune.options import begin_or_resume, finetuning_options
from areal_sdk.command import OnceCommand, PlayingCommand


@click.command(cls=PlayingCommand)
@click.argument("data", nargs=-1)
@click.option(
    "--min-reward", type=float, help="Of a run's episodes; default: those that succeeded."
)
@click.option("--per-task", type=int, help="At most so many episodes of a task, the best ones.")
@finetuning_options()
def sft(**given: Any) -> None:
    """Imitate DATA: files of rows {"messages": [...], "tools": [...]}, or run directories.

    Only assistant messages are trained. From a run, the best episodes are trained, token by token as sampled.

    \b
    areal-sdk sft rows.jsonl --model smollm2 --eval-data held_out.jsonl
    areal-sdk sft runs/Calculator-20261121-101500 --agent calculator.py
    areal-sdk sft --resume runs/sft-20261121-121500 --steps 200
    """
    begin_or_resume("sft", **given)


@click.command(cls=PlayingCommand)
@click.argument("data", nargs=-1)
@click.option("--beta", type=float, help="A larger one stays closer to the weights it began with.")
@click.option(
    "--length-normalised", is_flag=True, default=None, help="Compare mean logprobs a token."
)
@finetuning_options()
def dpo(**given: Any) -> None:
    """Prefer the chosen answers of DATA: files of pairs, or run directories.

    A line is {"messages": [...], "chosen": ..., "rejected": ...}. From a run, the best and the worst episode of each
    group are a pair.

    \b
    areal-sdk dpo pairs.jsonl --init-from runs/sft-20261121-121500
    areal-sdk dpo runs/Calculator-20261121-101500 --agent calculator.py
    """
    begin_or_resume("dpo", **given)


@click.command(name="reward-model", cls=OnceCommand)
@click.argument("data", nargs=-1)
@finetuning_options()
def reward_model(**given: Any) -> None:
    """Learn to judge from DATA: pairs as `areal-sdk dpo` takes them.

    The run is a reward afterwards: --reward model --set reward.model.path=RUN.

    \b
    areal-sdk reward-model pairs.jsonl --eval-data held_out.jsonl
    areal-sdk train my_agent.py --reward model --set reward.model.path=runs/reward-model-...
    """
    begin_or_resume("reward_model", **given)
