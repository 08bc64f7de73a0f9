"""`inspect RUN --worst, --best, --group, --where`: the list of episodes, with their text."""

import json

from click.testing import CliRunner

from areal_sdk.cli.records.inspect import inspect
from areal_sdk.telemetry import RunDir


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(inspect, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_shows_step_advantage_and_the_beginning_of_the_text(run: RunDir) -> None:
    output = output_of(str(run.path), "--worst", "2", "--where", "step < 4")
    header, _, first, second, *_ = output.splitlines()
    assert header.split() == [
        *("episode", "split", "task", "turns", "tokens", "reward", "advantage", "version"),
        *("fate", "text"),
    ]
    assert first.split() == [
        *("train-3.0", "train", "t-3", "1", "6", "0.00", "-0.34", "2", "step", "3"),
        *("The", "answer", "of", "attempt", "0", "is", "30."),
    ]
    assert second.startswith("train-2.0")
    assert "these are the worst 2; more: --worst 20" in output
    assert "--episode train-3.0" in output


def test_a_group_is_listed_whole_and_as_json(run: RunDir) -> None:
    data = json.loads(output_of(str(run.path), "--group", "train-4", "--json"))
    assert [e["id"] for e in data["episodes"]] == [f"train-4.{n}" for n in (3, 2, 1, 0)]
    assert data["episodes"][3]["step"] == 4


def test_nothing_found_and_contradictions_are_told(run: RunDir) -> None:
    assert output_of(str(run.path), "--where", "reward > 9") == "no episode is like that\n"
    result = CliRunner().invoke(inspect, [str(run.path), "--best", "1", "--worst", "1"])
    assert result.exit_code == 2
    result = CliRunner().invoke(inspect, [str(run.path), "--where", "rewrad > 9"])
    assert "known: id, task_id, group, split" in str(result.exception)


def test_one_episode_says_which_step_trained_it(run: RunDir) -> None:
    told = "reward 0, no success, trained in step 3 with advantage -0.338"
    assert told in output_of(str(run.path), "--episode", "train-3.0")
    assert "trained in step" not in output_of(str(run.path), "--episode", "bad")
