"""The contract of a command of `areal-sdk`: how it says that it runs user code, and the options that commands share.

A package adds its commands with the hook `register_commands`.
"""

from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_SEVERAL = {
    "tasks": ", or put the tasks of all into one file",
    "eval_tasks": ", or put the tasks of all into one file",
}
"""The advice to a user who gave an option several times, by option."""

_FLAG_KEYS = {
    "steps": "run.steps",
    "seed": "run.seed",
    "engine": "engine.name",
    "sandbox": "agent.sandbox",
    "launcher": "cluster.launcher",
    "samples": "eval.samples",
    "num_tasks": "eval.tasks",
    "temperature": "eval.temperature",
    "question_field": "fields.question",
    "answer_field": "fields.answer",
}


class OnceCommand(click.Command):
    """Refuses an option that takes one value and is given two: click would silently drop the first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if isinstance(option, click.Option) and times > 1 and not _may_repeat(option):
                raise click.UsageError(
                    f"{option.opts[0]} is given {times} times, and takes one value: leave all but "
                    f"one out{_SEVERAL.get(option.name or '', '')}",
                    ctx,
                )
        return super().parse_args(ctx, args)


class PlayingCommand(OnceCommand):
    """A command that runs user code: agents, rewards, environments. It ends the processes that this code starts."""

    def invoke(self, ctx: click.Context) -> Any:
        from areal_sdk.process import found_family

        found_family()
        return super().invoke(ctx)


def _may_repeat(option: click.Option) -> bool:
    return option.multiple or option.is_flag


def options_together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Options that several commands take, in the order of the help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


setting_options = options_together(
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="A TOML file of settings."
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set one setting; wins over the file.",
    ),
)
task_options = options_together(
    click.option(
        "--tasks",
        help="A file (JSONL, JSON, CSV, Parquet) or a dataset's name; default: the agent file's own.",
    ),
    click.option("--question-field", help='What the file calls task.data["question"].'),
    click.option("--answer-field", help='What the file calls task.data["answer"].'),
)
player_options = options_together(
    click.option("--env", help="Play this environment instead of an agent."),
    click.option("--command", help='Play with this command, in any language: "node agent.js".'),
    click.option(
        "--sandbox",
        is_flag=True,
        default=None,
        help="Run the command in a sandbox: needs areal-sdk[sandbox] and bubblewrap.",
    ),
    click.option(
        "--engine", help="`local`, `sglang`, a plugin's, or addresses of running servers."
    ),
)


def key_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Warn if a key was given as an argument, which other users of the machine can read. Callback of an option."""
    assert param.name is not None, "options have names"
    if ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
        click.echo(
            f"warning: other users of this machine can read {param.opts[0]} in the list of processes (ps): "
            f"set {param.envvar} instead",
            err=True,
        )
    return value


def given_settings(
    agent: str | None, rewards: tuple[str, ...], plugins: tuple[str, ...], flags: dict[str, Any]
) -> dict[str, Any]:
    """The given options of a command as settings by dotted key. `flags`: values by the names of their options."""
    from areal_sdk.config.keys import join_key

    found: dict[str, Any] = {
        _FLAG_KEYS.get(name, name): value for name, value in flags.items() if value is not None
    }
    if agent is not None:
        found["agent"] = agent
    if plugins:
        found["plugins"] = plugins
    for reward in rewards:
        name, _, weight = reward.partition("=")
        try:
            found[join_key("reward", name, "weight")] = float(weight or 1.0)
        except ValueError:
            raise click.BadParameter(f"--reward {reward!r}: write NAME or NAME=WEIGHT") from None
    return found
