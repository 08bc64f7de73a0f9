"""`areal_sdk.Run`: a run's directory in Python."""

import shutil
import sys
from pathlib import Path

import pytest

import areal_sdk
from areal_sdk import ConfigError
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, RunDir
from areal_sdk.types import Episode, Outcome, Task

from .scripted import ATTACK


@pytest.fixture
def read(run: RunDir) -> areal_sdk.Run:
    return areal_sdk.Run(str(run.path))


def test_metrics_and_evaluations_are_rows_in_their_order(read: areal_sdk.Run) -> None:
    assert [row["step"] for row in read.metrics()] == [1, 2, 3, 4, 5, 6]
    assert [row["success"] for row in read.evaluations()] == [0.25, 0.5, 0.75]


def test_episodes_are_rows_without_their_place_in_a_file(read: areal_sdk.Run) -> None:
    episodes = read.episodes()
    assert [row["id"] for row in episodes[:2]] == ["train-1.0", "train-1.1"]
    assert episodes[0]["step"] == 1
    assert not {"file", "offset", "length"} & episodes[0].keys()


def test_episodes_are_selected_by_a_condition(read: areal_sdk.Run) -> None:
    assert [row["id"] for row in read.episodes("step == 2 and reward > 0.3")] == [
        *("train-2.2", "train-2.3")
    ]


def test_one_episode_is_read_by_its_id(read: areal_sdk.Run) -> None:
    assert read.episode("train-2.3").final_text == ATTACK


def test_a_run_tells_its_settings_and_its_state(run: RunDir, read: areal_sdk.Run) -> None:
    assert read.settings["algorithm"] == {"name": "grpo"}
    assert repr(read) == f"<Run {run.path}: 6 steps, finished>"


def test_a_run_that_goes_on_is_read_as_it_is_now(run: RunDir, tmp_path: Path) -> None:
    live = RunDir(shutil.copytree(run.path, tmp_path / "live"))
    read = areal_sdk.Run(live.path)
    with live.in_use():
        metrics, episodes = MetricsLog(live.metrics), EpisodeWriter(live.episodes)
        metrics.log("step", {"step": 7})
        episodes.write(Episode("new", Task("t"), (), Outcome.scored(1.0)))
        assert "running" in repr(read)
        assert read.metrics()[-1]["step"] == 7
        assert read.episodes()[-1]["id"] == "new"
        metrics.close()
        episodes.close()


def test_a_data_frame_has_a_row_a_step(run: RunDir) -> None:
    pytest.importorskip("pandas")
    read = areal_sdk.Run(run.path)
    assert read.to_pandas()["batch/reward"].tolist()[0] == 0.2375
    assert read.to_pandas("evaluations")["success"].max() == 0.75
    assert len(read.to_pandas("episodes")) == len(read.episodes())


def test_the_curves_are_plotted(run: RunDir) -> None:
    pytest.importorskip("matplotlib")
    titles = [axes.get_title() for axes in areal_sdk.Run(run.path).plot().axes]
    assert titles[:3] == ["held-out success", "held-out reward", "training reward"]


def test_a_missing_package_is_named_with_the_way_around(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    read = areal_sdk.Run(run.path)
    with pytest.raises(ConfigError, match=r"pip install pandas; .*episodes\(\) gives a list"):
        read.to_pandas("episodes")
    with pytest.raises(ConfigError, match=r"pip install matplotlib; .*--report draws the same"):
        read.plot()


def test_what_is_no_run_and_no_kind_is_refused(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        areal_sdk.Run(tmp_path)
    with pytest.raises(ConfigError, match="known: metrics, episodes, evaluations"):
        areal_sdk.Run(run.path).to_pandas("rewards")  # type: ignore[arg-type]
