"""`areal-sdk train`: trains an agent, shows the progress, and prints the run directory."""

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from areal_sdk.command import (
    PlayingCommand,
    given_settings,
    player_options,
    setting_options,
    task_options,
)


@click.command(cls=PlayingCommand)
@click.argument("agent", required=False)
@click.option("--model", help="A directory, a hub id, `smollm2` or `tiny`.")
@task_options
@click.option("--eval-tasks", help="The same, for the held-out splits.")
@click.option("--reward", "rewards", multiple=True, help="A reward's name, or NAME=WEIGHT.")
@click.option("--observer", "observers", multiple=True, help="An observer's name: a tracker.")
@player_options
@click.option("--launcher", help="Where processes run: `local`, `torchrun`, `ray`, or a plugin's.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too.")
@click.option("--steps", type=int, help="Optimiser steps to take.")
@click.option("--seed", type=int, help="Seed of sampling and of the order of tasks.")
@setting_options
@click.option("--init-from", help="Start from the best or last weights of this run.")
@click.option("--resume", metavar="RUN", help="Continue this run: a directory, or a mirror.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the settings, do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def train(
    agent: str | None,
    rewards: tuple[str, ...],
    observers: tuple[str, ...],
    plugins: tuple[str, ...],
    file: Path | None,
    settings: tuple[str, ...],
    resume: str | None,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train AGENT: a file, file.py::Name, package.module:Name, or a plugin's agent.

    \b
    areal-sdk train my_agent.py
    areal-sdk train my_agent.py --model smollm2 --set rollout.batch=64
    areal-sdk train --resume runs/MyAgent-20261121-101500 --steps 200
    """
    import orjson

    from areal_sdk.cli.summary import print_plan, print_settings, print_summary
    from areal_sdk.config import load_config
    from areal_sdk.loop import check, check_resume, resume_training, train_config

    if resume is not None:
        refuse_beside_resume("--steps", "--set", "--json", "--dry-run")
        limits = limits_of_resumed(flags)
        if dry_run:
            config, place = check_resume(resume, settings=settings, overrides=limits)
            print_settings(config)
            click.echo(f"ok: the run would go on {place}; nothing was started or played", err=True)
            return
        summary = resume_training(resume, settings=settings, overrides=limits, quiet=as_json)
    else:
        given = given_settings(agent, rewards, plugins, flags)
        if observers:
            given["observers"] = observers
        config = load_config(file=file, settings=settings, overrides=given)
        if dry_run:
            print_plan(check(config, say=partial(click.echo, err=True)))
            return
        summary = train_config(config, quiet=as_json)
    if as_json:
        click.echo(orjson.dumps(summary.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_summary(summary)
    if summary.ended == "interrupted":
        raise SystemExit(1)


def refuse_beside_resume(*allowed: str) -> None:
    """Raise ConfigError if an option was given beside `--resume` that is not `allowed` there."""
    from areal_sdk.errors import ConfigError

    context = click.get_current_context()
    refused = [
        parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        and not {*parameter.opts} & {"--resume", *allowed}
    ]
    if refused:
        raise ConfigError(
            f"--resume takes its settings from the run: leave out {', '.join(refused)}; beside it "
            f"may be only {', '.join(allowed)}"
        )


def limits_of_resumed(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings that flags may change when a run is resumed."""
    return {} if flags["steps"] is None else {"run.steps": flags["steps"]}
