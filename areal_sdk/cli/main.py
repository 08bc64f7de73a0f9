"""`areal-sdk`: finds the command, and turns errors into one line and an exit code."""

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import click

import areal_sdk
from areal_sdk.errors import ArealError, ConfigError, PluginError, StorageError
from areal_sdk.errors.packages import how_to_install
from areal_sdk.hookspecs import PROJECT

DEBUG_VARIABLE = "AREAL_SDK_DEBUG"
BUILTIN = "areal_sdk.builtin"

THREAD_GRACE_S = 1.0
"""Seconds to wait at the exit for threads that are about to end."""
FAMILY_GRACE_S = 1.0
"""Seconds to wait at the exit for processes that the user's code started and left running."""

COMMANDS = {
    "train": "Teach an agent.",
    "sft": "Imitate conversations, or what a run did best.",
    "dpo": "Prefer the better of two answers.",
    "reward-model": "Learn to judge answers.",
    "distill": "Imitate a teacher.",
    "eval": "Measure how often an agent succeeds.",
    "serve": "Serve a model to any OpenAI client.",
    "keys": "Make and revoke keys of a server's callers.",
    "export": "Write a run's weights as a model for others.",
    "inspect": "Look at a run: books, rewards, episodes token by token.",
    "why": "Say what keeps a run from learning.",
    "explain": "Explain a token: who sampled it, and what a step made of it.",
    "runs": "List runs, newest first, or compare some of them.",
    "init": "Start an agent, an environment or a plugin, or settings from AReaL's.",
    "plugins": "List what is installed, or check that a plugin keeps its contracts.",
    "doctor": "Check this machine.",
}
"""Our own commands, in the order of the help."""

_MODULES = {
    "inspect": "records.inspect",
    "why": "records.why",
    "explain": "records.explain",
    "runs": "records.runs",
    "sft": "finetune.commands",
    "dpo": "finetune.commands",
    "reward-model": "finetune.commands",
    "distill": "finetune.commands",
}
"""Modules below `areal_sdk.cli`, for commands that have another name than their module."""


class CommandGroup(click.Group):
    """Imports a command when it is called; plugins bring more."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in _plugin_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"areal_sdk.cli.{_MODULES.get(cmd_name, cmd_name)}")
            return next(
                item
                for item in vars(module).values()
                if isinstance(item, click.Command) and item.name == cmd_name
            )
        command = _plugin_commands(ctx).get(cmd_name)
        if command is None and (cure := how_to_install("command", cmd_name)):
            raise ConfigError(cure)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = list(COMMANDS.items())
        rows += [
            (name, command.get_short_help_str(formatter.width))
            for name, command in _plugin_commands(ctx).items()
            if name not in COMMANDS
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(areal_sdk.__version__, prog_name="areal-sdk")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Train the agent you already have.

    \b
    areal-sdk eval my_agent.py --model smollm2
    areal-sdk train my_agent.py --model smollm2
    """
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"  # child processes see it too
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command; the exit code is 0, 1 (it failed) or 2 (its arguments are wrong)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # The background job of a script: who sends it SIGINT, or ends the script by Ctrl-C, means it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _exit(_run(arguments))
    except KeyboardInterrupt:  # a second Ctrl-C: no more waiting
        _end_own_family()
        os._exit(1)


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command, and report its errors; returns the exit code."""
    try:
        code = cli.main(args=arguments, prog_name="areal-sdk", standalone_mode=False)
    except click.NoSuchOption as exc:
        return _report(ConfigError(cure)) if (cure := _bringing(exc)) else _refuse(exc)
    except click.ClickException as exc:
        return _refuse(exc)
    except (click.Abort, KeyboardInterrupt) as exc:
        click.echo("interrupted", err=True)
        for note in getattr(exc.__cause__ or exc, "__notes__", ()):  # click raises Abort from it
            click.echo(note, err=True)
        return 1
    except BrokenPipeError:  # `areal-sdk inspect RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except Exception as exc:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        if isinstance(exc.__cause__, KeyboardInterrupt):  # Ctrl-C within pydantic, which wraps it
            click.echo("interrupted", err=True)
            return 1
        return _report(exc)
    return code if isinstance(code, int) else 0


def _exit(code: int) -> NoReturn:
    """Leave, even if a thread of the user's code would keep the interpreter alive for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing left to stop
    deadline = time.monotonic() + THREAD_GRACE_S
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    for thread in others:
        if not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() and not thread.daemon for thread in others):
        _end_own_family(grace_s=FAMILY_GRACE_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _end_own_family(*, grace_s: float = 0.0) -> None:
    """End the processes that user code started: they could hold the output of the command open."""
    if family := sys.modules.get("areal_sdk.process.family"):  # a command that plays brought it
        family.end_own_family(grace_s=grace_s)


def _report(error: Exception) -> int:
    """Print an error as one line on stderr; returns the exit code."""
    folder = Path(str(getattr(error, "filename", None) or ".")).parent
    if isinstance(error, FileNotFoundError) and not folder.exists():
        error = StorageError(f"no directory {folder}: keep it until the command ends, or make it")
    if isinstance(error, ArealError):
        click.secho("error: ", fg="red", err=True, nl=False)
        click.echo(_one_line(str(error)), err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
        return 2 if isinstance(error, (ConfigError, PluginError)) else 1
    click.secho("internal error: ", fg="red", err=True, nl=False)
    what = f"{type(error).__name__}: {_one_line(str(error))}"
    click.echo(f"{what} (areal-sdk --debug ... shows where)", err=True)
    return 1


def _refuse(error: click.ClickException) -> int:
    """Print Click's own message on stderr; returns the exit code."""
    error.show()
    return 2 if isinstance(error, click.UsageError) else 1


def _bringing(error: click.NoSuchOption) -> str:
    """The way to install the package that an unknown option belongs to; empty if it belongs to none."""
    command = error.ctx.command_path.partition(" ")[2] if error.ctx else ""
    return how_to_install("option", f"{command} {error.option_name}".strip())


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _plugin_commands(ctx: click.Context) -> dict[str, click.Command]:
    """Commands of installed plugins. Loads nothing when only the built-in plugin is there."""
    if all(point.value == BUILTIN for point in entry_points(group=PROJECT)):
        return {}
    context: Any = ctx.find_root()
    if context.obj is None:
        from areal_sdk.plugins import load_plugins

        commands = load_plugins().commands
        context.obj = {
            name: commands.get(name) for name in commands.names() if not commands.conflict(name)
        }
    found: dict[str, click.Command] = context.obj
    return found
