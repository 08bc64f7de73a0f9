"""Options of the agent and the environment survive being named and set in any order."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.train import train
from areal_sdk.config import load_config
from areal_sdk.errors import ConfigError


@pytest.mark.parametrize(
    "in_file", ['env = "maze"', '[env]\nname = "maze"', "[env.maze]\nsize = 3"]
)
def test_an_environment_named_anywhere_keeps_the_options_set_elsewhere(
    tmp_path: Path, in_file: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(in_file)
    config = load_config(file=path, settings=["env.maze.size=5"], overrides={"env": "maze"})
    assert config.env == "maze"
    assert config.options["env.maze"] == {"size": 5}


def test_an_agent_given_as_an_argument_keeps_its_options() -> None:
    config = load_config(settings=["agent.style=terse"], overrides={"agent": "mine.py"})
    assert config.agent == "mine.py"
    assert config.options["agent"] == {"style": "terse"}


def test_a_misspelt_option_of_an_environment_is_an_error() -> None:
    arguments = ["--env", "mastermind", "--tasks", "mastermind", "--model", "tiny", "--dry-run"]
    with pytest.raises(ConfigError, match="has no option 'max_guess': did you mean 'max_guesses'"):
        CliRunner().invoke(
            train, [*arguments, "--set", "env.mastermind.max_guess=2"], catch_exceptions=False
        )
