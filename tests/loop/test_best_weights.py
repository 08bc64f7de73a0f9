"""The best weights seen survive kills, resumes and evaluations that scored nothing."""

from pathlib import Path

from areal_sdk.loop.measure import BEST_FILE, Evaluator, _keep
from areal_sdk.loop.state import RunState


def export(path: Path, name: str) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(name)
    return path


def evaluator(directory: Path, state: RunState) -> Evaluator:
    unused: object = None
    return Evaluator(unused, {}, state, unused, best_dir=directory / "best")  # type: ignore[arg-type]


def test_a_resumed_run_knows_what_best_weights_newer_than_its_checkpoint_achieved(
    tmp_path: Path,
) -> None:
    _keep(export(tmp_path / "candidate-000030", "v30"), tmp_path / "best", success=0.9, step=30)
    state = RunState(step=20, best_success=0.5, best_step=10)  # as the checkpoint has it
    evaluator(tmp_path, state).recall_best()
    assert (state.best_success, state.best_step) == (0.9, 30)


def test_better_weights_take_the_place_of_the_best(tmp_path: Path) -> None:
    best = tmp_path / "best"
    _keep(export(tmp_path / "candidate-000010", "v10"), best, success=0.5, step=10)
    _keep(export(tmp_path / "candidate-000020", "v20"), best, success=0.7, step=20)
    assert (best / "config.json").read_text() == "v20"
    assert (best / BEST_FILE).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_kill_between_the_renames_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    best = tmp_path / "best"
    _keep(export(tmp_path / "candidate-000010", "v10"), best, success=0.5, step=10)
    best.rename(tmp_path / ".best.old")
    export(tmp_path / "candidate-000020", "v20")
    state = RunState()
    evaluator(tmp_path, state).recall_best()
    assert (best / "config.json").read_text() == "v10"
    assert state.best_success == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
