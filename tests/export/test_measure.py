"""The figures of a card are those of the exported files, where the tasks are at hand."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.errors import ArealError
from areal_sdk.loop.export import Figures, choose, measuring, write_export
from areal_sdk.models import make_tiny_model
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from tests.loop.runs import AGENT, finish, start_command

from .conftest import make_run


def test_the_files_are_measured_before_the_card_is_written(run: RunDir, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def measure(directory: Path) -> Figures:
        seen.append({path.name for path in directory.iterdir()})
        numbers = {"tasks": 8.0, "scored": 8.0, "success": 0.5, "success_low": 0.4}
        report = EvalReport.from_metrics("eval", {**numbers, "success_high": 0.6})
        return Figures({"eval": report}, engine="local engine")

    write_export(choose(run), tmp_path / "vowels", measure=measure)
    (files,) = seen
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert "README.md" not in files
    card = (tmp_path / "vowels" / "README.md").read_text()
    assert "success before | success in the run | success these files |" in card
    row = "| eval | 8 | 0.250 [0.150, 0.350] | 0.700 [0.600, 0.800] | 0.500 [0.400, 0.600] |"
    assert row in card
    assert "were measured when they were exported, by the local engine" in card


def test_a_card_without_a_measurement_says_whose_its_figures_are(
    run: RunDir, tmp_path: Path
) -> None:
    figures = measuring(run, asked=None)(tmp_path)
    assert "vowels.py" in figures.problem
    write_export(choose(run), tmp_path / "vowels", measure=measuring(run, asked=None))
    card = (tmp_path / "vowels" / "README.md").read_text()
    assert "measured in the run, on its weights, and not on these files." in card
    assert "/home/someone" not in card
    with pytest.raises(ArealError, match=r"the tasks of .*my-run are not at hand"):
        measuring(run, asked=True)
    assert measuring(run, asked=False)(tmp_path) == Figures()


@pytest.mark.long
def test_the_command_plays_the_held_out_tasks_on_the_files(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    plays = {"agent": str(AGENT), "eval": {"tasks": 4, "samples": 2}, "gateway": {"port": 1}}
    run = make_run(tmp_path, base, plays=plays)
    for name, *options in (("one", "--last"), ("two", "--measure"), ("not", "--no-measure")):
        command = ["export", str(run.path), "--to", str(tmp_path / name), *options]
        output = finish(start_command(*command))
        card = (tmp_path / name / "README.md").read_text()
        assert ("success these files" in card) == (name != "not"), output
        assert (" on these files" in output) == (name != "not")


def test_an_adapter_alone_is_not_measured(run: RunDir, tmp_path: Path) -> None:
    from areal_sdk.cli.main import cli

    command = ["export", str(run.path), "--to", str(tmp_path / "x"), "--adapter", "--measure"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code
    assert "--adapter leaves nothing that could be measured alone" in result.output
