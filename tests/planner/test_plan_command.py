"""`areal-sdk plan`: what it prints, what it refuses, and that a real run calibrates it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.main import cli
from areal_sdk.errors import ConfigError
from areal_sdk.planner.parts import Described, from_hardware
from areal_sdk.planner.splits import best_split, with_batch
from tests.loop.runs import SCRIPTED, finish, run_dir, start_training

SMALL = ("--model", "1.5B", "--gpu", "h100", "--batch", "32", "--output", "200")


def plan(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_plan_from_hardware_names_the_split_and_every_assumption() -> None:
    output = plan(*SMALL, "--gpus", "4", "--price", "2.5")
    assert "$ / M tokens" in output
    assert "assumed:" in output
    assert "989 TFLOP/s" in output
    assert "a rough guess" in output


def test_the_same_question_has_the_same_answer_and_more_gpus_give_more() -> None:
    asked = (*SMALL, "--gpus", "2", "--gpus", "8", "--eta", "1", "--json")
    first, again = json.loads(plan(*asked)), json.loads(plan(*asked))
    assert first == again
    small, large = first["plans"]
    assert large["trained_tokens_per_s"] > small["trained_tokens_per_s"]
    assert large["engines"] * large["gpus_per_engine"] + large["trainer_ranks"] <= 8
    assert max(map(int, large["staleness"])) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --from RUN, or --model"),
        (("--model", "7B", "--gpu", "abacus"), "unknown GPU 'abacus'"),
        (("--model", "70B", "--gpus", "1"), "too few"),
        (("--model", "7B", "--batch", "100"), "not a multiple of the group size"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_cure(
    arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False, standalone_mode=False)


def test_a_split_uses_no_more_than_it_is_given() -> None:
    described = from_hardware("1.5B", "h100", workload=Described(512, 200, 1, 0.0, 2048))
    split = best_split(with_batch(described.parts, 32), 16, eta=1)
    assert split.engines * split.gpus_per_engine + split.ranks <= 16
    assert 0.99 < split.available < 1.0


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
