"""`areal-sdk plan` of the package areal-sdk-plan, on runs of this core."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.main import cli
from areal_sdk.config import RunSection
from areal_sdk.errors import ConfigError
from areal_sdk_plan.simulation.losses import LossRates
from tests.loop.runs import SCRIPTED, finish, run_dir, start_training


def plan(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_real_run_calibrates_a_plan(tmp_path: Path) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=14))
    run = str(run_dir(tmp_path).path)
    output = plan("--from", run, "--gpus", "4")
    assert "the recorded run" in output
    assert "a GPU is what one engine or one trainer rank of the run had" in output
    shape = json.loads(plan("--from", run, "--gpus", "4", "--json"))
    assert shape["recorded"]["step_s"] > 0
    assert shape["plans"][0]["batch"] == 16


def test_a_run_that_is_too_short_says_how_to_go_on(tmp_path: Path) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=4))
    with pytest.raises(ConfigError, match=r"has 4 steps; a calibration needs 11: let it run on"):
        CliRunner().invoke(
            cli,
            ["plan", "--from", str(run_dir(tmp_path).path)],
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_a_plan_assumes_the_checkpoints_of_the_default_settings() -> None:
    assert LossRates().checkpoint_every == RunSection().checkpoint_every
