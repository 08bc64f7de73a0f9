"""`areal-sdk distill`: a student imitates the rewarded episodes of a teacher."""

from typing import Any

import click

from areal_sdk.cli.finetune.options import find_config, finetuning_options, print_finetuning
from areal_sdk.command import PlayingCommand, given_settings


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
    from areal_sdk.cli.records.report import print_reports
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
