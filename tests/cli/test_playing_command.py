"""A command says itself that it runs user code, also a package's."""

import subprocess
import sys

PROGRAM = """
import subprocess, sys
import click
from areal_sdk.command import PlayingCommand, given_settings, player_options, setting_options

@click.command(cls=PlayingCommand)
@click.option("--reward", "rewards", multiple=True)
@player_options
@setting_options
def play(rewards, file, settings, **flags):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(given_settings(None, rewards, (), flags))

play()
"""


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120
    )


def test_processes_that_a_playing_command_left_end_with_it() -> None:
    """The output ends when the last process that holds it does."""
    ended = play("--engine", "mine", "--reward", "a=2")
    assert ended.stdout == "{'engine.name': 'mine', 'reward.a.weight': 2.0}\n"


def test_shared_options_refuse_what_our_commands_refuse() -> None:
    assert "--engine is given 2 times" in play("--engine", "a", "--engine", "b").stderr
    assert "write NAME or NAME=WEIGHT" in play("--reward", "a=b").stderr
