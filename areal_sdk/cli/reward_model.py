"""`areal-sdk reward-model`: a model that judges answers, from pairs of them."""

from typing import Any

import click

from areal_sdk.cli.finetuning import begin_or_resume, finetuning_options
from areal_sdk.cli.main import OnceCommand


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
