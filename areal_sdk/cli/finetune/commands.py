"""`areal-sdk sft`, `dpo` and `reward-model`, from data that is given, and `distill`, from what a teacher plays."""

from typing import Any

import click

from areal_sdk.cli.finetune.options import (
    begin_or_resume,
    find_config,
    finetuning_options,
    print_finetuning,
)
from areal_sdk.command import OnceCommand, PlayingCommand, given_settings


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


@click.command(cls=PlayingCommand)
@click.argument("agent_file", metavar="AGENT")
@click.option("--teacher", required=True, metavar="URL", help="An OpenAI-compatible endpoint.")
@click.option("--teacher-model", required=True, help="The model to ask for there.")
@click.option("--num-tasks", type=int, help="At most so many training tasks, from the first on.")
@click.option("--samples", type=int, default=1, show_default=True, help="Attempts a task.")
@click.option("--tasks", help="A JSONL file or a dataset's name; default: the agent file's own.")
@click.option("--reward", "rewards", multiple=True, help="A reward's name, or NAME=WEIGHT.")
@click.option("--min-reward", type=float, help="What is imitated; default: what succeeded.")
@click.option("--per-task", type=int, help="At most so many episodes of a task, the best ones.")
@finetuning_options(resumes=False)
def distill(
    agent_file: str,
    teacher: str,
    teacher_model: str,
    num_tasks: int | None,
    samples: int,
    rewards: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Have a teacher play the training tasks of AGENT, and imitate its good episodes.

    The teacher's key is read from OPENAI_API_KEY. Its episodes stay in a run directory: `areal-sdk
    sft` teaches them to other students.

    \b
    areal-sdk distill my_agent.py --teacher https://api.example.com/v1 --teacher-model some-model
    """
    from areal_sdk.cli.summary import print_reports
    from areal_sdk.finetune import Teacher, ask_teacher, finetune

    if flags.pop("agent", None):
        raise click.UsageError("--agent: the student plays the tasks of AGENT, before and after")
    given = given_settings(None, rewards, (), {"tasks": flags.pop("tasks")})
    config = find_config("sft", **{**flags, **given, "agent": agent_file})
    asked = Teacher(teacher, teacher_model, num_tasks, samples)
    if dry_run:
        raise click.UsageError("--dry-run: the data is what the teacher says, and it is not asked")
    taught = ask_teacher(config, asked, quiet=as_json)
    if not as_json:
        print_reports({f"teacher {teacher_model}": taught.report})
        click.echo(f"the teacher's episodes: {taught.run_dir}", err=True)
    finetuning = config.finetune.model_copy(update={"data": (str(taught.run_dir),)})
    student = config.model_copy(update={"finetune": finetuning})
    print_finetuning(finetune(student, quiet=as_json), as_json=as_json)
